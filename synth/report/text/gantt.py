"""A text Gantt chart: one row per rank, true to scale, readable without colour.

A cell shows the op that runs at its middle. An op starts with its letter, and its micro-batch if
there is space, and is filled with its shade:

    rank 0  F0░░F1░░F2░░·············B0▒▒▒W0▓▓

If ops are shorter than a cell in the mean, the height of a cell is the share of its time in which
the rank works, and its colour that of the kind of op which takes most of it.
"""

import math
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from synth.op_kinds import TIMELESS, OpKind
from synth.report.chart.excerpt import Excerpt
from synth.report.chart.palette import COLOURS
from synth.report.text.axis import axis
from synth.report.text.drawing import IDLE, LOOKS, Drawing
from synth.schedule.measured.execution_trace import OpSpan, OpSpans
from synth.schedule.ops import Op
from synth.units import format_us

# Heights of cells by eighths.
_HEIGHTS = "▁▂▃▄▅▆▇█"


def gantt(
    charts: OpSpans | Mapping[str, OpSpans],
    width: int = 100,
    *,
    colour: bool = False,
    excerpt: Excerpt | None = None,
) -> Text:
    """Draw charts on one scale.

    Args:
        charts: the charts to draw; of several ("planned", "measured"), each rank's rows stand
            under each other.
        width: the width of the whole picture, in characters.
        colour: colours instead of shades.
        excerpt: the part that is drawn; None: everything.

    Raises:
        SynthError: the excerpt holds nothing, or names a rank that there is not.
    """
    whole = charts if isinstance(charts, Mapping) else {"": charts}
    part = excerpt or Excerpt()
    ranks = part.shown_ranks(len(next(iter(whole.values()))))
    ends_us = _ends_of(whole) if excerpt is None else part.ends_us(_ends_of(whole)[1])
    named = {
        name: [_within(chart[rank], ends_us) for rank in ranks] for name, chart in whole.items()
    }
    heads = _row_heads(named, ranks)
    margin = len(heads[0])
    drawing = _plan_drawing(named, ends_us, max(20, width - margin), colour)
    picture = Text()
    rows = (spans for rank in zip(*named.values(), strict=True) for spans in rank)
    for head, spans in zip(heads, rows, strict=True):
        picture.append_text(Text(head) + _row(spans, drawing)).append("\n")
    for line in axis(drawing.start_us, drawing.end_us, drawing.cells):
        picture.append(f"{' ' * margin}{line}\n")
    return picture.append_text(_legend(drawing, margin, width))


def render(
    planned: OpSpans,
    *,
    measured: OpSpans | None = None,
    measured_as: str = "measured",
    moves: Mapping[str, OpSpans] | None = None,
    width: int | None = None,
    excerpt: Excerpt | None = None,
) -> str:
    """Draw for stdout, ready to print: in colour on a terminal unless NO_COLOR is set.

    Args:
        planned: simulated spans.
        measured: the spans of a run, drawn below the planned ones.
        measured_as: the name of these rows.
        moves: further rows by name, of offload transfers.
        width: in characters; none: the terminal's, or 100.
        excerpt: the part that is drawn; None: everything.
    """
    console = Console(highlight=False, soft_wrap=True)
    colour = console.color_system is not None and not console.no_color
    charts = {"planned": _without_timeless(planned)}
    charts |= {} if measured is None else {measured_as: _without_timeless(measured)}
    charts |= moves or {}
    columns = width or shutil.get_terminal_size((100, 24)).columns
    with console.capture() as captured:
        console.print(
            gantt(
                charts if len(charts) > 1 else charts["planned"],
                columns,
                colour=colour,
                excerpt=excerpt,
            )
        )
    return captured.get().rstrip("\n")


def _without_timeless(spans: OpSpans) -> OpSpans:
    """Return the ops that take time; transfers of offloading have rows of their own."""
    return [[span for span in rank if span.op.kind not in TIMELESS] for rank in spans]


def _ends_of(named: Mapping[str, OpSpans]) -> tuple[int, int]:
    """Return the start of the first op and the end of the last one."""
    every = [span for chart in named.values() for rank in chart for span in rank]
    start_us = min((span.start_us for span in every), default=0)
    return start_us, max((span.end_us for span in every), default=0)


def _within(spans: Sequence[OpSpan], ends_us: tuple[int, int]) -> list[OpSpan]:
    """Return the spans that are in a range of time, at least in part."""
    return [span for span in spans if span.end_us >= ends_us[0] and span.start_us <= ends_us[1]]


def _plan_drawing(
    named: Mapping[str, OpSpans], ends_us: tuple[int, int], cells: int, colour: bool
) -> Drawing:
    every = [span for chart in named.values() for rank in chart for span in rank]
    lengths_us: defaultdict[OpKind, list[int]] = defaultdict(list)
    for span in every:
        if span.end_us > span.start_us:
            lengths_us[span.op.kind].append(span.end_us - span.start_us)
    return Drawing(
        start_us=ends_us[0],
        end_us=ends_us[1],
        cells=cells,
        colour=colour,
        # A low quantile, not the minimum, as measured times vary.
        short_us={kind: sorted(found)[len(found) // 10] for kind, found in lengths_us.items()},
        places=_places(named),
        longest=max((len(str(span.op)) - len(span.op.kind) for span in every), default=0),
        digits=len(str(max((span.op.microbatch for span in every), default=0))),
        is_dense=0 < _mean(lengths_us) < (ends_us[1] - ends_us[0]) / cells,
    )


def _mean(lengths_us: Mapping[OpKind, Sequence[int]]) -> float:
    every = [length for found in lengths_us.values() for length in found]
    return sum(every) / max(1, len(every))


def _places(named: Mapping[str, OpSpans]) -> dict[tuple[int, int], int]:
    """Number the (stage, replica) pairs on each rank; empty if no rank holds several."""
    places: dict[tuple[int, int], int] = {}
    for chart in named.values():
        for rank in chart:
            # A rank hosts activations of others (K, G) without holding their stage.
            ops = [span.op for span in rank if span.op.kind not in TIMELESS]
            held = sorted({(op.stage, op.replica) for op in ops})
            places |= {pair: number for number, pair in enumerate(held)}
    return places if any(places.values()) else {}


def _row_heads(named: Mapping[str, OpSpans], ranks: Sequence[int]) -> list[str]:
    """Return heads such as `rank 10  measured  `, all equally wide."""
    digits = len(str(max(ranks, default=0)))
    longest = max(map(len, named))
    heads = []
    for rank in ranks:
        for place, name in enumerate(named):
            label = f"rank {rank:>{digits}}" if place == 0 else " " * (5 + digits)
            heads.append(f"{label}  {name:<{longest}}{'  ' if longest else ''}")
    return heads


def _row(spans: Sequence[OpSpan], drawing: Drawing) -> Text:
    if drawing.is_dense:
        return _dense_row(spans, drawing)
    text = Text()
    for op, run in groupby(_sample(spans, drawing)):
        length = len(list(run))
        if op is None:
            text.append(IDLE * length, "dim" if drawing.colour else "")
            continue
        fill = " " if drawing.colour else LOOKS[op.kind].shade
        style = drawing.style(op) if drawing.colour else ""
        text.append(drawing.label(op, length).ljust(length, fill), style)
    return text


def _dense_row(spans: Sequence[OpSpan], drawing: Drawing) -> Text:
    """Return cells as high as the share of their time that is work."""
    text = Text()
    for busy_us in _busy_us(spans, drawing):
        level = round(len(_HEIGHTS) * sum(busy_us.values()) / drawing.cell_us)
        if not level:
            text.append(IDLE, "dim" if drawing.colour else "")
            continue
        most = max(busy_us, key=busy_us.__getitem__)
        style = COLOURS.get(most, "") if drawing.colour else ""
        text.append(_HEIGHTS[min(level, len(_HEIGHTS)) - 1], style)
    return text


def _busy_us(spans: Sequence[OpSpan], drawing: Drawing) -> list[dict[OpKind, float]]:
    """Return for each cell the time that each kind of op takes of it."""
    busy: list[dict[OpKind, float]] = [{} for _ in range(drawing.cells)]
    for op, *ends_us in spans:
        first, last = ((at_us - drawing.start_us) / drawing.cell_us for at_us in ends_us)
        for cell in range(max(0, math.floor(first)), min(drawing.cells, math.ceil(last))):
            taken = min(last, cell + 1) - max(first, cell)
            busy[cell][op.kind] = busy[cell].get(op.kind, 0.0) + taken * drawing.cell_us
    return busy


def _sample(spans: Sequence[OpSpan], drawing: Drawing) -> list[Op | None]:
    """Return the op that runs at the middle of each cell."""
    sampled: list[Op | None] = [None] * drawing.cells
    for op, *ends_us in spans:
        first, last = (
            math.ceil((at_us - drawing.start_us) / drawing.cell_us - 0.5) for at_us in ends_us
        )
        for cell in range(max(0, first), min(drawing.cells, last)):
            sampled[cell] = op
    return sampled


def _legend(drawing: Drawing, margin: int, width: int) -> Text:
    """Return the legend: the kinds that appear, idle time, and the time per column."""
    colour, entries = drawing.colour, []
    for kind in (kind for kind in OpKind if kind in drawing.short_us):
        look = LOOKS[kind]
        if drawing.is_dense:
            if colour and kind in COLOURS:
                name = f"{kind} {look.meaning.removeprefix(f'{kind}, ')}"
                entries.append(Text("█", COLOURS[kind]) + Text(f" {name}"))
            continue
        letters = kind.value if drawing.fits(kind, len(kind) + 1) else look.letter
        meaning = look.meaning.removeprefix(f"{letters}, ")
        style = drawing.style(Op(kind, 0)) if colour else ""
        sample = Text(f"{letters}{' ' if colour else look.shade}", style)
        entries.append(sample + Text(f" {meaning}"))
    entries.append(Text(IDLE, "dim" if colour else "") + Text(" idle"))
    if drawing.is_dense:
        entries.append(Text(f"{_HEIGHTS[0]} … {_HEIGHTS[-1]} share of a column's time in ops"))
    else:
        entries += _name_legend(drawing)
    entries.append(Text(f"1 column = {format_us(drawing.cell_us)}"))
    if drawing.is_dense:
        entries.append(Text("--from and --to show single ops"))
    elif any(short < drawing.cell_us for short in drawing.short_us.values()):
        entries.append(Text("some ops are shorter than a column; widen to see all"))
    return _wrapped(entries, margin, width)


def _name_legend(drawing: Drawing) -> list[Text]:
    """Return what the numbers of ops are, and what tells the stages of a rank apart."""
    entries = []
    if drawing.has_stages:
        entries.append(Text("F1.2: stage 1, micro-batch 2"))
    elif any(map(drawing.has_numbers, drawing.short_us)):
        entries.append(Text("F2: micro-batch 2"))
    if not drawing.places:
        return entries
    shades = ", lighter colours" if drawing.colour else ""
    more = " (fourth, …)" if max(drawing.places.values()) > 1 else ""
    return [*entries, Text(f"lower case{shades}: a rank's second{more} stage")]


def _wrapped(entries: list[Text], margin: int, width: int) -> Text:
    """Wrap entries side by side."""
    legend, used = Text(" " * margin), margin
    for place, entry in enumerate(entries):
        if place and used + 3 + len(entry) > width:
            legend.append("\n" + " " * margin)
            used = margin
        elif place:
            legend.append("   ")
            used += 3
        legend.append_text(entry)
        used += len(entry)
    return legend
