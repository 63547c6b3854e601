"""The row of a rank in a picture of schedules: ops, moves of saved activations, and memory."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.report.chart.palette import COLOURS, is_dark
from synth.report.picture.drawn_chart import DIGIT_WIDTH, DrawnChart, last_us, nodes_of
from synth.report.picture.picture import XY, Picture
from synth.report.picture.scale import Scale
from synth.schedule.rank_memory import SlotLevels, peak_bytes, static_bytes
from synth.units import format_bytes, format_us

_BAR, _LANE, _MEMORY, _GAP = 22.0, 5.0, 22.0, 3.0

# Distances of texts: of names from the axis, and of a baseline below the middle of its line.
_BESIDE, _BASELINE = 8.0, 4.0

# Width in pixels of the columns that show shares of time.
_COLUMN = 2.0

Floats = npt.NDArray[np.float64]


def row_height(drawn: DrawnChart) -> float:
    """Return the height of a row in pixels."""
    lane = _GAP + _LANE if drawn.moves else 0.0
    return _BAR + lane + (0.0 if drawn.levels is None else _GAP + _MEMORY)


@dataclass(frozen=True)
class ScheduleRow:
    """A rank of a chart, from a height on; `x` is the time axis in µs."""

    drawn: DrawnChart
    rank: int
    x: Scale
    top: float

    def draw(self, picture: Picture, name: str) -> None:
        """Draw the row, with its name to the left."""
        x = self.x
        at = (x.start - _BESIDE, self.top + _BAR / 2 + _BASELINE)
        picture.text(at, name, "rank", "end")
        picture.rectangle((x.start, self.top), self._end - x.start, _BAR, "idle")
        if self.drawn.is_dense:
            self._draw_shares(picture)
        else:
            self._draw_ops(picture)
        below = self.top + _BAR + _GAP
        if self.drawn.moves:
            self._draw_moves(picture, below)
            below += _LANE + _GAP
        if self.drawn.levels is not None:
            self._draw_memory(picture, below, self.drawn.levels)

    @property
    def _end(self) -> float:
        """The right end of the schedule, in the picture."""
        return self.x.at(min(self.x.high, max(last_us(self.drawn.chart), self.x.low)))

    def _visible(self, start_us: int, end_us: int) -> tuple[float, float] | None:
        """Return the ends of a span as far as it is on the axis; None: it is not."""
        first, last = max(start_us, self.x.low), min(end_us, self.x.high)
        return (self.x.at(first), self.x.at(last)) if last > first else None

    def _draw_ops(self, picture: Picture) -> None:
        drawn, timed = self.drawn, self.drawn.chart.timed
        first = timed.lowered.first_node[self.rank]
        for node, op in enumerate(timed.lowered.ops[self.rank], first):
            start_us, end_us = int(timed.start_us[node]), int(timed.end_us[node])
            ends = self._visible(start_us, end_us)
            if ends is None or op.kind not in COLOURS:
                continue
            place = drawn.places[op.stage, op.replica]
            tip = f"{op}: {format_us(start_us)} – {format_us(end_us)}"
            width = ends[1] - ends[0]
            picture.rectangle((ends[0], self.top), width, _BAR, f"{op.kind}-{place}", tip)
            number = str(op.microbatch)
            if op.kind in drawn.numbered and width >= DIGIT_WIDTH * len(number):
                ink = "on-dark" if is_dark(drawn.colour(op.kind, place)) else "on-light"
                at = (sum(ends) / 2, self.top + _BAR / 2 + _BASELINE)
                picture.text(at, number, ink, "middle")

    def _draw_shares(self, picture: Picture) -> None:
        """Draw the share of time of each kind, one above the other, for columns of pixels."""
        x, timed = self.x, self.drawn.chart.timed
        first, end = nodes_of(self.drawn.chart, self.rank)
        kinds = timed.lowered.arrays.kind[first:end]
        places = np.linspace(x.start, x.end, round((x.end - x.start) / _COLUMN) + 1)
        edges_us = np.linspace(x.low, x.high, len(places))
        below = np.zeros(len(places) - 1)
        for kind in self.drawn.kinds:
            nodes = first + (kinds == list(OpKind).index(kind)).nonzero()[0]
            if not len(nodes):
                continue
            busy_us = _busy_until(timed.start_us[nodes], timed.end_us[nodes], edges_us)
            above = below + np.diff(busy_us) / np.diff(edges_us)
            upper, lower = (_stairs(places, self.top + _BAR * (1 - h)) for h in (above, below))
            picture.area([*upper, *reversed(lower)], f"{kind}-0")
            below = above

    def _draw_moves(self, picture: Picture, top: float) -> None:
        for move in self.drawn.moves.get(self.rank, ()):
            ends = self._visible(move.start_us, move.end_us)
            if ends is not None:
                tip = f"{move.name}: {format_us(move.start_us)} – {format_us(move.end_us)}"
                picture.rectangle((ends[0], top), ends[1] - ends[0], _LANE, str(move.kind), tip)

    def _draw_memory(self, picture: Picture, top: float, levels: SlotLevels) -> None:
        """Draw static memory, above it all that is alive, the limit, and the peak in words."""
        chart, x = self.drawn.chart, self.x
        up = Scale(0, self.drawn.most_bytes, top + _MEMORY, top)
        base = up.at(static_bytes(chart.timed.lowered, self.rank))
        line = [(x.at(at_us), up.at(level)) for at_us, level in self._corners(levels)]
        if line:
            picture.area([(line[0][0], base), *line, (line[-1][0], base)], "alive")
        picture.rectangle((x.start, base), self._end - x.start, top + _MEMORY - base, "static")
        if chart.caps_bytes is not None:
            cap = up.at(chart.caps_bytes[self.rank])
            picture.line([(x.start, cap), (self._end, cap)], "limit")
        peak = format_bytes(peak_bytes(chart.timed.lowered)[self.rank])
        at = (x.start - _BESIDE, top + _MEMORY / 2 + _BASELINE)
        picture.text(at, f"peak {peak}", "peak", "end")

    def _corners(self, levels: SlotLevels) -> Iterator[tuple[float, int]]:
        """Yield the corners of the memory curve on the axis, in µs and bytes."""
        for first_us, until_us, level in self._pieces(levels):
            first, until = max(first_us, self.x.low), min(until_us, self.x.high)
            if until > first:
                yield first, level
                yield until, level

    def _pieces(self, levels: SlotLevels) -> Iterator[tuple[int, int, int]]:
        """Yield start, end and level while the rank waits and while it runs an op, in turns."""
        timed = self.drawn.chart.timed
        first, end = nodes_of(self.drawn.chart, self.rank)
        before_us = 0
        for node in range(first, end):
            start_us, end_us = int(timed.start_us[node]), int(timed.end_us[node])
            yield before_us, start_us, int(levels.waiting[node + self.rank])
            yield start_us, end_us, int(levels.running[node + self.rank])
            before_us = end_us
        yield before_us, last_us(self.drawn.chart), int(levels.waiting[end + self.rank])


def _busy_until(start_us: IntArray, end_us: IntArray, at_us: Floats) -> Floats:
    """Return the time that ops, in order and without overlap, have taken until some moments."""
    begun = np.searchsorted(start_us, at_us, side="right")
    whole_us = np.concatenate([[0], (end_us - start_us).cumsum()])
    to_come_us = np.maximum(0, np.concatenate([[0], end_us])[begun] - at_us)
    busy_us: Floats = whole_us[begun] - np.where(begun > 0, to_come_us, 0)
    return busy_us


def _stairs(edges: Floats, heights: Floats) -> list[XY]:
    """Return the corners of a line that is level between two edges."""
    across, up = np.repeat(edges, 2)[1:-1].tolist(), np.repeat(heights, 2).tolist()
    return list(zip(across, up, strict=True))
