"""Options of saving checkpoints and of resuming from them."""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from synth.record import Record

LAST_GOOD: Literal["last-good"] = "last-good"


class CheckpointOptions(Record):
    """`every` in optimizer steps (the last step is always saved); `keep` 0 keeps all."""

    folder: Path
    every: PositiveInt = 100
    keep: NonNegativeInt = 2
    resume: bool = False
    """Go on from the last checkpoint."""
    resume_from: NonNegativeInt | Literal["last-good"] | None = None
    """Go on from a step's checkpoint, or from the last one that is intact."""
    ignore_data: bool = False
    """Go on though the data is another."""
    ignore_optimizer: bool = False
    """Go on though the optimizer is another: state that it does not share begins anew."""

    @property
    def resumes(self) -> bool:
        """True if training goes on from what the folder holds."""
        return self.resume or self.resume_from is not None
