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
    """Resume from the last checkpoint."""
    resume_from: NonNegativeInt | Literal["last-good"] | None = None
    """Resume from a step's checkpoint, or from the last intact one."""
    ignore_data: bool = False
    """Resume with other data."""
    ignore_optimizer: bool = False
    """Resume with another optimizer: state that differs is reset."""

    @property
    def resumes(self) -> bool:
        """True if training resumes from a checkpoint in the folder."""
        return self.resume or self.resume_from is not None
