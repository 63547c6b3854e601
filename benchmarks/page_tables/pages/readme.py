"""The tables of README: the schedules of two frameworks, and the least period within a limit."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import synth
from benchmarks.page_tables.commands import Row, by_schedule, compared, rows_of, solved
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table
from synth.costs.recomputed_layers import recomputing
from synth.options.profiles import load_profile

_PROFILE = "zb-1.5b-p8-m24"
_RANKS = 8
_MICRO_BATCHES = 24
_LIMIT_BYTES = 30 * 10**9

_COMPARE = (
    "synth compare zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --mem-limit 30GB --only gpipe "
    "--only 1f1b --only 1f1b:recompute --only interleaved:3 --only interleaved:3,recompute "
    "--only breadth-first:3 --only zb-v --only dualpipe-v --only zb-h1 --only gis:3,half "
    "--placement linear --placement v --placement looped:3 --partition even --time-limit 60s"
)
# The program of docs/compare.md#recomputed-layers: by schedule, the layers that recompute.
RECOMPUTED = {"1f1b": range(0, 24, 3), "zb-v": range(0, 24, 2), "interleaved:3": range(5)}
_RECOMPUTED_CASE = "chosen layers recomputed"


class Line(NamedTuple):
    """A line of the table of frameworks: its row by case and schedule, and the words beside it."""

    case: str
    schedule: str
    label: str
    megatron: str = ""
    torchtitan: str = ""


_ONE_OF_THREE = "1F1B, one layer of three recomputed ([how](docs/compare.md#recomputed-layers))"
_INTERLEAVED = "interleaved 1F1B, 3 stages per rank"
_LINES = (
    Line("", "breadth-first:3", "breadth-first (LoopedBFS), 3 stages per rank", "", "yes"),
    Line("", "interleaved:3", _INTERLEAVED, "yes", "yes"),
    Line("", "zb-v", "ZB-V (ZBVZeroBubble)", "", "yes"),
    Line("", "dualpipe-v", "DualPipeV", "", "yes"),
    Line("", "zb-h1", "ZB-H1"),
    Line("", "gpipe", "GPipe", "", "yes"),
    Line("", "1f1b", "1F1B", "yes", "yes"),
    Line("", "1f1b:recompute", "1F1B, full recomputation", "yes", "yes"),
    Line("", "interleaved:3,recompute", f"{_INTERLEAVED}, full recomputation", "yes", "yes"),
    Line(_RECOMPUTED_CASE, "1f1b", _ONE_OF_THREE, "yes", "yes"),
    Line(_RECOMPUTED_CASE, "zb-v", "ZB-V, every second layer recomputed", "", "not checked"),
    Line("", "gis:3,half", "GIS, 3 stages per rank, half of the memory"),
    Line("", "solved looped:3", "**synth, 3 stages per rank**"),
    Line("", "solved v", "**synth, V placement**"),
    Line("", "solved linear", "**synth, one stage per rank**"),
)


def _frameworks() -> Iterator[Row]:
    yield from compared(_COMPARE)
    for name, layers in RECOMPUTED.items():
        yield with_layers_recomputed(name, layers)


def with_layers_recomputed(name: str, layers: range) -> Row:
    """Return the row of a published schedule in which these layers recompute."""
    profile = recomputing(load_profile(_PROFILE, None), layers)
    plan = synth.simulate(name, profile, ranks=_RANKS, micro_batches=_MICRO_BATCHES)
    claim = plan.claim
    peak_bytes = max(claim.peak_bytes)
    return Row(
        _RECOMPUTED_CASE,
        name,
        list(plan.partition),
        claim.makespan_us,
        claim.period_us,
        None,
        peak_bytes,
        fits=peak_bytes <= _LIMIT_BYTES,
    )


def _frameworks_table(document: Mapping[str, Any]) -> str:
    rows = {(row.case, row.schedule): row for row in rows_of(document)}
    heads = (
        "schedule", "Megatron-LM", "torchtitan", "time of an iteration", "highest peak",
        "fits 30 GB",
    )  # fmt: skip
    return markdown_table(heads, (_line(line, rows[line[:2]]) for line in _LINES))


def _line(line: Line, row: Row) -> list[str]:
    time = f"{row.makespan_us / 1e6:.3f} s"
    fits = "yes" if row.fits else "no"
    if row.gap is not None:
        fits += f"; gap to the lower bound {100 * row.gap:.1f} %"
    return [
        line.label,
        line.megatron,
        line.torchtitan,
        f"**{time}**" if row.gap is not None else time,
        f"{row.peak_bytes / 1e9:.1f} GB",
        fits,
    ]


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
        "README.md",
        "the schedules of Megatron-LM and torchtitan, and the solver's, within 30 GB.",
        (_COMPARE,),
        _frameworks,
        _frameworks_table,
        has_search=True,
    ),
    PageTable(
        "periods",
        "README.md",
        "the least period within 30 GB.",
        (_PUBLISHED, _SOLVE),
        _periods,
        _periods_table,
        has_search=True,
    ),
)
