"""Where, how often and how many."""

from pathlib import Path

from pydantic import NonNegativeInt, PositiveInt

from synth.record import Record


class CheckpointOptions(Record):
    """`every` in optimizer steps (the last step is always saved); `keep` 0 keeps all."""

    folder: Path
    every: PositiveInt = 100
    keep: NonNegativeInt = 2
    resume: bool = False
