"""How ops look in a text chart: letters, shades and colours, and how much of a name fits."""

from dataclasses import dataclass
from typing import NamedTuple

from synth.kinds import OpKind
from synth.schedule.ops import Op


class Look(NamedTuple):
    """How a kind of op is drawn: one letter, a shade without colour, a style with it."""

    letter: str
    shade: str
    style: str
    meaning: str


LOOKS = {
    OpKind.F: Look("F", "░", "white on #2f6db5", "forward"),
    OpKind.B: Look("B", "▒", "black on #5fc7c2", "input gradient"),
    OpKind.W: Look("W", "▓", "black on #7cc36a", "weight gradient"),
    OpKind.BW: Look("X", "▒", "black on #5fb0c7", "BW, both gradients"),
    OpKind.STEP: Look("S", "█", "black on #e0a63f", "optimizer step"),
}
IDLE = "·"


@dataclass(frozen=True)
class Drawing:
    """What all rows share: the time that the cells stand for, and how much of a name fits.

    `short_us` is the length of a short op of each kind that appears. What is written into an op is
    decided for a kind as a whole, so that rows read evenly.
    """

    start_us: int
    end_us: int
    cells: int
    colour: bool
    short_us: dict[OpKind, int]

    @property
    def cell_us(self) -> float:
        """The time that one cell stands for."""
        return (self.end_us - self.start_us) / self.cells or 1.0

    def fits(self, kind: OpKind, length: int) -> bool:
        """Whether short ops of a kind, too, have that many cells."""
        return self.short_us[kind] >= length * self.cell_us

    def label(self, op: Op, length: int) -> str:
        """The fullest name of an op that fits into its cells."""
        kind = op.kind
        letters = kind.value if self.fits(kind, len(kind) + 1) else LOOKS[kind].letter
        number = "" if kind == OpKind.STEP else str(op.microbatch)
        full = f"{letters}{number}"
        if self.fits(kind, len(letters) + 1) and len(full) <= length:
            return full
        return letters[:length]
