"""The row of a rank in a picture of schedules: ops, moves of saved activations, and memory."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass

import numpy as np

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.report.chart.palette import COLOURS, is_dark
from synth.report.picture.columns import Floats, busy_shares, highest_levels, outlines
from synth.report.picture.drawn_chart import DIGIT_WIDTH, DrawnChart
from synth.report.picture.picture import Picture
from synth.report.picture.scale import Scale
from synth.schedule.rank_memory import peak_bytes, static_bytes
from synth.units import format_bytes, format_us

# The height of ops from which there are numbers in them.
_NUMBERED_FROM = 13.0

# The height from which a line of text stands in a row.
_TEXT = 11.0

# Distances of texts: of names from the axis, and of a baseline below the middle of its line.
_BESIDE, _BASELINE = 8.0, 4.0

# Width in pixels of the columns that show shares of time.
_COLUMN = 2.0


@dataclass(frozen=True)
class RowSizes:
    """Heights in pixels: of ops, moves and memory, of the space between them, and below a row."""

    bar: float = 22.0
    lane: float = 5.0
    memory: float = 22.0
    gap: float = 3.0
    below: float = 8.0

    def scaled(self, share: float) -> "RowSizes":
        """Return all heights times a share."""
        return RowSizes(*(share * height for height in astuple(self)))

    @property
    def has_numbers(self) -> bool:
        """True if ops are high enough for numbers."""
        return self.bar >= _NUMBERED_FROM

    def row(self, drawn: DrawnChart) -> float:
        """Return the height of a row with the space below it."""
        lane = self.gap + self.lane if drawn.moves else 0.0
        memory = self.gap + self.memory if drawn.has_memory else 0.0
        return self.bar + lane + memory + self.below


@dataclass(frozen=True)
class ScheduleRow:
    """A rank of a chart, from a height on; `x` is the time axis in µs."""

    drawn: DrawnChart
    rank: int
    x: Scale
    top: float
    sizes: RowSizes

    def draw(self, picture: Picture, name: str) -> None:
        """Draw the row, with its name, if it has one, to the left."""
        x, sizes = self.x, self.sizes
        if name:
            at = (x.start - _BESIDE, self.top + sizes.bar / 2 + _BASELINE)
            picture.text(at, name, "rank", "end")
        picture.rectangle((x.start, self.top), self._end - x.start, sizes.bar, "idle")
        if self.drawn.is_dense:
            self._draw_shares(picture)
        else:
            self._draw_ops(picture)
        below = self.top + sizes.bar + sizes.gap
        if self.drawn.moves:
            self._draw_moves(picture, below)
            below += sizes.lane + sizes.gap
        if self.drawn.has_memory:
            self._draw_memory(picture, below)

    @property
    def _end(self) -> float:
        """The right end of the schedule, in the picture."""
        return self.x.at(min(self.x.high, max(self.drawn.chart.timed.last_us, self.x.low)))

    def _visible(self, start_us: int, end_us: int) -> tuple[float, float] | None:
        """Return the ends of a span as far as it is on the axis; None: it is not."""
        first, last = max(start_us, self.x.low), min(end_us, self.x.high)
        return (self.x.at(first), self.x.at(last)) if last > first else None

    def _draw_ops(self, picture: Picture) -> None:
        drawn, timed = self.drawn, self.drawn.chart.timed
        first, bar = timed.lowered.first_node[self.rank], self.sizes.bar
        for node, op in enumerate(timed.lowered.ops[self.rank], first):
            start_us, end_us = int(timed.start_us[node]), int(timed.end_us[node])
            ends = self._visible(start_us, end_us)
            if ends is None or op.kind not in COLOURS:
                continue
            place = drawn.places[op.stage, op.replica]
            tip = f"{op}: {format_us(start_us)} – {format_us(end_us)}"
            width = ends[1] - ends[0]
            picture.rectangle((ends[0], self.top), width, bar, f"{op.kind}-{place}", tip)
            number = str(op.microbatch)
            is_numbered = self.sizes.has_numbers and op.kind in drawn.numbered
            if is_numbered and width >= DIGIT_WIDTH * len(number):
                ink = "on-dark" if is_dark(drawn.colour(op.kind, place)) else "on-light"
                at = (sum(ends) / 2, self.top + bar / 2 + _BASELINE)
                picture.text(at, number, ink, "middle")

    def _draw_shares(self, picture: Picture) -> None:
        """Draw the share of time of each kind, one above the other, for columns of pixels."""
        timed, bar = self.drawn.chart.timed, self.sizes.bar
        every = timed.nodes_of(self.rank)
        kinds = timed.lowered.arrays.kind[every]
        edges, edges_us = self._columns()
        shares = []
        for kind in self.drawn.kinds:
            nodes = every[kinds == list(OpKind).index(kind)]
            shares.append(busy_shares(timed.start_us[nodes], timed.end_us[nodes], edges_us))
        heights = bar * np.cumsum(shares, axis=0)
        areas = outlines(heights, edges, self.top + bar)
        # The last one is the highest; those before it cover it up to their heights.
        for kind, area in reversed(list(zip(self.drawn.kinds, areas, strict=True))):
            picture.area(area, f"{kind}-0")

    def _columns(self) -> tuple[Floats, Floats]:
        """Return the edges of the columns up to the end of the schedule, in pixels and in µs."""
        x = self.x
        count = max(1, round((self._end - x.start) / _COLUMN))
        edges = np.linspace(x.start, self._end, count + 1)
        return edges, x.low + (edges - x.start) * (x.high - x.low) / (x.end - x.start)

    def _draw_moves(self, picture: Picture, top: float) -> None:
        for move in self.drawn.moves.get(self.rank, ()):
            ends = self._visible(move.start_us, move.end_us)
            if ends is not None:
                tip = f"{move.name}: {format_us(move.start_us)} – {format_us(move.end_us)}"
                width = ends[1] - ends[0]
                picture.rectangle((ends[0], top), width, self.sizes.lane, str(move.kind), tip)

    def _draw_memory(self, picture: Picture, top: float) -> None:
        """Draw static memory, above it all that is alive, the limit, and the peak in words."""
        chart, x = self.drawn.chart, self.x
        height = self.sizes.memory
        up = Scale(0, self.drawn.most_bytes, top + height, top)
        base = up.at(static_bytes(chart.timed.lowered, self.rank))
        if self.drawn.is_dense:
            edges, edges_us = self._columns()
            highest = highest_levels(*self._levels_in_turn(), edges_us)
            heights = np.maximum(0, base - np.vectorize(up.at)(highest))
            picture.area(outlines(heights[np.newaxis], edges, base)[0], "alive")
        elif line := [(x.at(at_us), up.at(level)) for at_us, level in self._corners()]:
            picture.area([(line[0][0], base), *line, (line[-1][0], base)], "alive")
        picture.rectangle((x.start, base), self._end - x.start, top + height - base, "static")
        if chart.caps_bytes is not None:
            cap = up.at(chart.caps_bytes[self.rank])
            picture.line([(x.start, cap), (self._end, cap)], "limit")
        if height >= _TEXT:
            peak = format_bytes(peak_bytes(chart.timed.lowered)[self.rank])
            at = (x.start - _BESIDE, top + height / 2 + _BASELINE)
            picture.text(at, f"peak {peak}", "peak", "end")

    def _levels_in_turn(self) -> tuple[IntArray, IntArray]:
        """Return the end and the level of each piece of time with a level."""
        pieces = np.array(list(self.drawn.chart.timed.memory_of(self.rank)))
        pieces = pieces[pieces[:, 1] > pieces[:, 0]]
        return pieces[:, 1], pieces[:, 2]

    def _corners(self) -> Iterator[tuple[float, int]]:
        """Yield the corners of the memory curve on the axis, in µs and bytes."""
        for first_us, until_us, level in self.drawn.chart.timed.memory_of(self.rank):
            first, until = max(first_us, self.x.low), min(until_us, self.x.high)
            if until > first:
                yield first, level
                yield until, level
