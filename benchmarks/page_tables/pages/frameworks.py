"""The schedules of two frameworks, and the least period within a limit."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.page_tables.commands import Row, by_schedule, compared, rows_of, solved
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table
from synth.report.text.tables import runs_text

_RIVALS = (
    "--only gpipe --only 1f1b --only interleaved:3 --only breadth-first:3 --only zb-v "
    "--only dualpipe-v --only zb-h1 --only gis:3 --only gis:3,half"
)
_REBUILDING = "--only gpipe:recompute --only 1f1b:recompute --only interleaved:3,recompute"
_FREE = (
    "synth compare zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --mem-limit none --no-solve "
    f"{_RIVALS}"
)
_LIMITED = (
    f"synth compare zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --mem-limit 30GB {_RIVALS} "
    f"{_REBUILDING} --partition even --placement linear --placement v --placement looped:3 "
    "--time-limit 120s"
)
_FREE_CASE, _LIMITED_CASE = "without a limit", "within 30 GB"


class Line(NamedTuple):
    """A line of the table of frameworks: its schedule, and the words beside it."""

    schedule: str
    label: str
    megatron: str = ""
    torchtitan: str = ""


_LINES = (
    Line("breadth-first:3", "breadth-first (LoopedBFS), 3 stages per rank", "", "yes"),
    Line("zb-v", "ZB-V (ZBVZeroBubble)", "", "yes"),
    Line("dualpipe-v", "DualPipeV", "", "yes"),
    Line("interleaved:3", "interleaved 1F1B, 3 stages per rank", "yes", "yes"),
    Line("gpipe", "GPipe", "", "yes"),
    Line("1f1b", "1F1B", "yes", "yes"),
    Line("zb-h1", "ZB-H1"),
    Line("gis:3", "GIS, 3 stages per rank"),
    Line("gis:3,half", "GIS, 3 stages per rank, half of the memory"),
    Line("solved looped:3", "**synth, 3 stages per rank**"),
    Line("solved v", "**synth, V placement**"),
    Line("solved linear", "**synth, one stage per rank**"),
)


def _frameworks() -> Iterator[Row]:
    yield from compared(_FREE, _FREE_CASE)
    yield from compared(_LIMITED, _LIMITED_CASE)


def _frameworks_table(document: Mapping[str, Any]) -> str:
    free, limited = (by_schedule(document, case) for case in (_FREE_CASE, _LIMITED_CASE))
    heads = (
        "schedule", "Megatron-LM", "torchtitan", "fastest", "its peak", "within 30 GB", "how",
    )  # fmt: skip
    return markdown_table(heads, (_line(line, free, limited) for line in _LINES))


def _line(line: Line, free: Mapping[str, Row], limited: Mapping[str, Row]) -> list[str]:
    """Return a line: the fastest without a limit, and the fastest that fits, if one does."""
    suffixes = ("", "+R", ":recompute", ",recompute")
    own = [limited.get(f"{line.schedule}{suffix}") for suffix in suffixes]
    fitting = [row for row in own if row is not None and row.fits]
    best = min(fitting, key=lambda row: row.makespan_us, default=None)
    fastest = free.get(line.schedule)
    return [
        line.label,
        line.megatron,
        line.torchtitan,
        "" if fastest is None else _seconds(fastest),
        "" if fastest is None else f"{fastest.peak_bytes / 1e9:.1f} GB",
        "does not fit" if best is None else _seconds(best),
        "" if best is None else _how(best),
    ]


def _seconds(row: Row) -> str:
    time = f"{row.makespan_us / 1e6:.3f} s"
    return time if row.gap is None else f"**{time}**"


def _how(row: Row) -> str:
    """Return the partition and the recomputed layers, or how far a plan is from its bound."""
    if row.gap is not None:
        return f"gap to the lower bound {100 * row.gap:.1f} %"
    is_rebuilt = row.schedule.endswith("recompute")
    recomputed = "all stages" if is_rebuilt else row.recomputation
    sizes = runs_text(row.partition)
    return sizes if recomputed is None else f"{sizes}; recomputed: {recomputed}"


_PUBLISHED = (
    "synth compare zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --objective period "
    "--mem-limit 30GB --no-solve --only zb-limit --only gpipe:recompute --only 1f1b:recompute "
    "--only bpipe --only gis:3,half"
)
_SOLVE = (
    "synth solve zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --objective period --mem-limit 30GB "
    "--placement linear --partition even --recompute none --gap 0% "
    "--time-limit 120s -o plan.json"
)
_LINEAR, _AUTO = "one stage per rank", "any placement"


def _periods() -> Iterator[Row]:
    command = _SOLVE.removesuffix(" -o plan.json")
    yield from compared(_PUBLISHED)
    yield solved(command, _LINEAR)
    yield solved(command.replace("--placement linear", "--placement auto"), _AUTO)


def _periods_table(document: Mapping[str, Any]) -> str:
    published = by_schedule(document)
    linear, auto = (
        next(row for row in rows_of(document) if row.case == case) for case in (_LINEAR, _AUTO)
    )
    recomputed = {_period(published[name]) for name in ("1f1b:recompute", "gpipe:recompute")}
    return markdown_table(
        ("schedule", "period", ""),
        (
            (
                "the zero-bubble greedy under a limit (`zb-limit`)",
                _period(published["zb-limit"]),
                "",
            ),
            ("1F1B and GPipe, both with full recomputation", " and ".join(sorted(recomputed)), ""),
            (
                "BPipe, which offloads activations to other ranks",
                _period(published["bpipe"]),
                "in this profile a transfer takes 0.6 ms, independent of its size",
            ),
            ("**the plan**, one stage per rank", f"**{_period(linear)}**", _proof(linear)),
            (
                "GIS with three stages per rank and half the memory (`gis:3,half`)",
                _period(published["gis:3,half"]),
                "with transfers as cheap as here, several stages per rank are better",
            ),
            (
                "**the plan** with `--placement auto` instead",
                f"**{_period(auto)}**",
                f"{_proof(auto)}, to a bound for all placements",
            ),
        ),
    )


def _period(row: Row) -> str:
    return f"{row.period_us / 1e6:.3f} s"


def _proof(row: Row) -> str:
    assert row.gap is not None
    if row.gap == 0:
        return "proven optimal for this partition"
    return f"gap {100 * row.gap:.1f} %"


TABLES = (
    PageTable(
        "frameworks",
        "notes/compare.md",
        "the schedules of Megatron-LM and torchtitan, and the solver's, within 30 GB.",
        (_FREE, _LIMITED),
        _frameworks,
        _frameworks_table,
        has_search=True,
    ),
    PageTable(
        "periods",
        "notes/results.md",
        "the least period within 30 GB.",
        (_PUBLISHED, _SOLVE),
        _periods,
        _periods_table,
        has_search=True,
    ),
)
