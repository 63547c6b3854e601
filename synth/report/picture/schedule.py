"""A picture of schedules: a row of ops for each rank, true to scale, with its memory below it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from synth.op_kinds import OpKind
from synth.report.chart.chart import Chart
from synth.report.chart.excerpt import Excerpt
from synth.report.picture.drawn_chart import NUMBER_SIZE, DrawnChart
from synth.report.picture.labels import text_width
from synth.report.picture.legend import LEGEND_LINE, Legend, LegendEntry
from synth.report.picture.picture import Picture
from synth.report.picture.scale import Scale
from synth.report.picture.schedule_row import RowSizes, ScheduleRow
from synth.report.text.axis import TickLabels
from synth.report.text.drawing import LOOKS

# Sizes in pixels: the picture's width and margins, lines of text, and the space between rows.
WIDTH, LEFT, RIGHT = 1200, 118, 20
_TITLE, _LEGEND, _TOP, _BOTTOM = 26.0, 45.0, 48.0, 46.0
_LINE, _BLOCK_GAP = 16.0, 14.0

# The height in pixels up to which rows are as high as they are meant to be.
_MOST_HEIGHT = 1200.0
# The least share of the usual height that a row has.
_LEAST_SHARE = 0.1

# The least distance of the names of two rows in pixels.
_NAME_EVERY = 14.0

# The size of a chart's name.
_NAME = 13.0

# Moves of saved activations in the legend.
_MOVES = {OpKind.OFFLOAD: "offload of activations", OpKind.RELOAD: "reload"}

_STYLES = {
    "title": "font-size:16px;font-weight:bold;fill:#22282d",
    "name": "font-size:13px;font-weight:bold;fill:#22282d",
    "note": "font-size:12px;fill:#5b6670",
    "rank": "font-size:12px;fill:#22282d",
    "peak": "font-size:10px;fill:#5b6670",
    "label": "font-size:12px;fill:#444c53",
    "on-light": f"font-size:{NUMBER_SIZE:g}px;fill:#1a1f23",
    "on-dark": f"font-size:{NUMBER_SIZE:g}px;fill:#ffffff",
    "idle": "fill:#e9edf0;stroke:none",
    "axis": "stroke:#5b6670;stroke-width:1;fill:none",
    "static": "fill:#73869c;stroke:none",
    "alive": "fill:#a9bacd;stroke:none",
    "limit": "stroke:#b03a3a;stroke-width:1.2;fill:none",
}


def schedule_picture(
    title: str,
    charts: Sequence[Chart],
    excerpt: Excerpt | None = None,
    *,
    by_rank: bool = False,
    memory: bool = True,
) -> Picture:
    """Draw schedules on one time axis.

    Args:
        charts: the schedules, from the top.
        excerpt: the part that is drawn; None: everything.
        by_rank: the rows of a rank stand under each other, instead of those of a schedule.
        memory: draw the memory of each rank below its ops.

    Raises:
        SynthError: the excerpt holds nothing, or names a rank that there is not.
    """
    part = excerpt or Excerpt()
    x = Scale(*part.ends_us(max(chart.timed.last_us for chart in charts)), LEFT, WIDTH - RIGHT)
    blocks = list(_blocks(charts, part, x, by_rank=by_rank, memory=memory))
    drawn = [one for block in blocks for one in block.drawn]
    sizes = _fitting(blocks, _TOP + 2 * LEGEND_LINE)
    entries = list(_entries(drawn, has_numbers=sizes.has_numbers))
    legend = Legend.of(entries, LEFT, _LEGEND, WIDTH - LEFT - RIGHT)
    top = _TOP + legend.height + LEGEND_LINE
    height = round(top + sum(block.height(sizes) for block in blocks) + _BOTTOM)
    styles = {name: style for one in drawn for name, style in one.styles().items()}
    picture = Picture(WIDTH, height, _STYLES | styles, title)
    picture.text((LEFT, _TITLE), title, "title")
    legend.draw(picture)
    for block in blocks:
        block.draw(picture, x, top, sizes)
        top += block.height(sizes)
    _draw_axis(picture, x, top)
    return picture


def _fitting(blocks: "Sequence[_Block]", top: float) -> RowSizes:
    """Return sizes with which all rows fit into a picture of the largest height.

    With very many charts the picture is higher, so that their rows can be seen.
    """
    sizes, nothing = RowSizes(), RowSizes().scaled(0)
    heads = top + sum(block.height(nothing) for block in blocks) + _BOTTOM
    rows = top + sum(block.height(sizes) for block in blocks) + _BOTTOM - heads
    return sizes.scaled(min(1.0, max(_LEAST_SHARE, (_MOST_HEIGHT - heads) / rows)))


def _blocks(
    charts: Sequence[Chart], part: Excerpt, x: Scale, *, by_rank: bool, memory: bool
) -> "Iterator[_Block]":
    """Yield a block for each chart, or one for all."""
    drawn = []
    for chart in charts:
        ranks = part.shown_ranks(chart.timed.lowered.num_ranks)
        drawn.append(DrawnChart.of(chart, x, ranks, memory))
        if not by_rank:
            yield _Block((drawn[-1],), ranks)
    if by_rank:
        yield _Block(tuple(drawn), ranks)


@dataclass(frozen=True)
class _Block:
    """Charts whose rows of a rank stand under each other, with their heads above all rows."""

    drawn: tuple[DrawnChart, ...]
    ranks: tuple[int, ...]

    def height(self, sizes: RowSizes) -> float:
        """Return the height of heads and rows in pixels."""
        heads = sum(len(_head(one.chart)) for one in self.drawn)
        rows = sum(map(sizes.row, self._rows))
        return heads * _LINE + len(self.ranks) * rows + _BLOCK_GAP

    @property
    def _rows(self) -> list[DrawnChart]:
        """The rows of each rank; memory is drawn below the last one only."""
        return [*(replace(one, has_memory=False) for one in self.drawn[:-1]), self.drawn[-1]]

    def draw(self, picture: Picture, x: Scale, top: float, sizes: RowSizes) -> None:
        """Draw the block from a height on."""
        for one in self.drawn:
            for place, line in enumerate(_head(one.chart)):
                left = LEFT + (0.0 if place else _name_width(one.chart))
                picture.text((left, top + 10), line, "note")
                if not place:
                    picture.text((LEFT, top + 10), one.chart.title, "name")
                top += _LINE
        named = top - _NAME_EVERY
        for rank in self.ranks:
            for place, one in enumerate(self._rows):
                name = f"rank {rank}"
                if len(self.drawn) > 1:
                    name = one.chart.title if place else f"{name} {one.chart.title}"
                if top < named + _NAME_EVERY:
                    name = ""
                else:
                    named = top
                ScheduleRow(one, rank, x, top, sizes).draw(picture, name)
                top += sizes.row(one)


def _head(chart: Chart) -> list[str]:
    """Return the lines of note and reason, the first of which stands beside the title."""
    lines = _wrapped(chart.note, ", ", _name_width(chart))
    return [*lines, *_wrapped(chart.reason, " ", 0.0)] if chart.reason else lines


def _wrapped(text: str, between: str, used: float) -> list[str]:
    """Break a text at a separator, in lines as wide as the picture; of the first some is used."""
    lines = [""]
    room = WIDTH - LEFT - RIGHT - used
    for part in text.split(between):
        if lines[-1] and text_width(f"{lines[-1]}{between}{part}") > room:
            lines[-1] += between.rstrip()
            lines.append(part)
            room = WIDTH - LEFT - RIGHT
        else:
            lines[-1] += f"{between}{part}" if lines[-1] else part
    return lines


def _name_width(chart: Chart) -> float:
    """Return the width of a chart's title with the space behind it."""
    return text_width(chart.title, _NAME) + 20


def _entries(drawn: Sequence[DrawnChart], *, has_numbers: bool) -> Iterator[LegendEntry]:
    """Yield the kinds of op, the shades of stages, idle time, moves and memory, where they are."""
    shades = max(1 if one.is_dense else one.num_shades for one in drawn)
    for kind in (kind for kind in OpKind if any(kind in one.kinds for one in drawn)):
        meaning = LOOKS[kind].meaning.removeprefix(f"{kind}, ")
        places = 1 if kind == OpKind.STEP else shades
        styles = tuple(f"{kind}-{place}" for place in range(places))
        yield LegendEntry(styles, "box", f"{kind} {meaning}")
    if has_numbers and any(one.numbered and not one.is_dense for one in drawn):
        yield LegendEntry((), "", "(numbers: micro-batches)")
    if shades > 1:
        yield LegendEntry((), "", "(lighter: further stages of a rank)")
    if any(one.is_dense for one in drawn):
        yield LegendEntry((), "", "(heights: shares of time)")
    yield LegendEntry(("idle",), "box", "idle", begins_part=True)
    for kind, meaning in _MOVES.items():
        if any(str(kind) in one.styles() for one in drawn):
            yield LegendEntry((str(kind),), "box", meaning)
    if drawn[-1].has_memory:
        yield LegendEntry(("static",), "box", "static memory")
        yield LegendEntry(("alive",), "box", "activations")
        if any(one.chart.caps_bytes is not None for one in drawn):
            yield LegendEntry(("limit",), "line", "memory limit")


def _draw_axis(picture: Picture, x: Scale, top: float) -> None:
    """Draw the time axis with round ticks; its unit is in its title."""
    ticks_us = x.ticks(12)
    labels = TickLabels.of(ticks_us, x.high - x.low)
    picture.line([(x.start, top), (x.end, top)], "axis")
    for tick_us in ticks_us:
        at = x.at(tick_us)
        picture.line([(at, top), (at, top + 5)], "axis")
        picture.text((at, top + 18), labels.label(tick_us), "label", "middle")
    picture.text(((x.start + x.end) / 2, top + 36), labels.title, "label", "middle")
