"""Style of ops in a text chart: letters, shades and colours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.report.chart.palette import COLOURS, MOVED_COLOURS, is_dark, lightened
from synth.schedule.ops import Op


class Look(NamedTuple):
    """Style of a kind of op: a letter, and a shade without colour."""

    letter: str
    shade: str
    meaning: str


LOOKS = {
    OpKind.F: Look("F", "░", "forward"),
    OpKind.B: Look("B", "▒", "input gradient"),
    OpKind.W: Look("W", "▓", "weight gradient"),
    OpKind.BW: Look("X", "▚", "BW, both gradients"),
    OpKind.R: Look("R", "╱", "forward again"),
    OpKind.OFFLOAD: Look("O", "›", "saved values leave"),
    OpKind.RELOAD: Look("L", "‹", "and come back"),
    OpKind.STEP: Look("S", "█", "optimizer step"),
}
IDLE = "·"


@dataclass(frozen=True)
class Drawing:
    """Scale of all rows: the time per cell, and the length of labels.

    `short_us` is the length of a short op of each kind that appears. What is written into an op is
    decided for a kind as a whole, so that rows read evenly. `places` are the (stage, replica) pairs
    of ranks that hold several, numbered on each rank: where the longest name, `longest` behind its
    letters, does not fit into all kinds, every second stage of a rank is written in lower case.
    `digits` is the length of the largest micro-batch. `is_dense`: ops are shorter than a cell in
    the mean, so that cells show how much of their time is work.
    """

    start_us: int
    end_us: int
    cells: int
    colour: bool
    short_us: dict[OpKind, int]
    places: Mapping[tuple[int, int], int] = field(default_factory=dict)
    longest: int = 0
    digits: int = 1
    is_dense: bool = False

    @property
    def cell_us(self) -> float:
        """Time per cell."""
        return (self.end_us - self.start_us) / self.cells or 1.0

    def fits(self, kind: OpKind, length: int) -> bool:
        """Return True if even the shortest ops of a kind have this many cells."""
        return self.short_us[kind] >= length * self.cell_us

    @property
    def has_stages(self) -> bool:
        """True if ops are named by stage and micro-batch, which is then so for all of them."""
        named = [kind for kind in self.short_us if kind in COLOURS and kind != OpKind.STEP]
        fits = (self.fits(kind, len(self._letters(kind)) + self.longest) for kind in named)
        return bool(self.places and named) and all(fits)

    def has_numbers(self, kind: OpKind) -> bool:
        """Return True if the micro-batch of even short ops of a kind is written into them."""
        digits = self.digits if self.places else 1
        return kind != OpKind.STEP and self.fits(kind, len(self._letters(kind)) + digits)

    def label(self, op: Op, length: int) -> str:
        """Return the name of an op in its cells: `F2.5` for micro-batch 5 of stage 2, else `F5`.

        On every second stage of a rank it is `f5`; where numbers do not fit it is `F` or `f`.
        """
        letters = self._letters(op.kind)
        is_second = self.places.get((op.stage, op.replica), 0) % 2
        short = letters.lower() if is_second else letters
        name = short
        if self.has_stages and op.kind != OpKind.STEP:
            name = str(op).replace(op.kind.value, letters, 1)
        elif self.has_numbers(op.kind):
            name = f"{short}{op.microbatch}"
        return name if len(name) <= length else short[:length]

    def _letters(self, kind: OpKind) -> str:
        return kind.value if self.fits(kind, len(kind) + 1) else LOOKS[kind].letter

    def style(self, op: Op) -> str:
        """Return the style with colour: the further a stage is on its rank, the lighter."""
        if op.kind in MOVED_COLOURS:
            colour = MOVED_COLOURS[op.kind]
        else:
            last = max(1, *self.places.values()) if self.places else 1
            place = self.places.get((op.stage, op.replica), 0)
            colour = lightened(COLOURS[op.kind], place / last)
        return f"{'white' if is_dark(colour) else 'black'} on {colour}"
