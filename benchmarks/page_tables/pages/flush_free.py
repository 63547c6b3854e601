"""The tables of notes/flush-free.md: published and searched schedules, and published planners."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.page_tables.commands import Row, compared, rows_of, solved
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table
from synth.costs.partition_costs import partition_costs
from synth.families import family_placement
from synth.options.profiles import load_profile
from synth.solver.flush_free.bounds import closed_form_us
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.problem import Problem
from synth.units import parse_bytes

_SPEED = (
    "synth compare zb-1.5b-p8-m24 --ranks 8 --micro-batches 48 --mem-limit none --no-solve "
    "--only 1f1b --only zb-h2 "
    "--only pipedream --only 2bw --only delayed-update"
)

_SEARCH = (
    "synth solve zb-1.5b-p8-m24 --ranks 8 --micro-batches 48 --link 10us,2GB/s "
    "--versions 2bw:every=16 --mem-limit 30GB --deterministic --workers 1 --time-limit 1s"
)
_PLANNERS = (
    "synth compare gpt-bytes-cpu --ranks 4 --micro-batches 48 --mem-limit 150MB --only 1f1b "
    "--only pipedream --only 2bw --planner pipedream --planner 2bw --placement linear "
    "--partition even --time-limit 3m"
)


def _speed_table(document: Mapping[str, Any]) -> str:
    heads = ("schedule", "ms per micro-batch", "delay", "versions")
    rows = sorted(rows_of(document), key=_micro_batch_us)
    return markdown_table(heads, map(_speed_line, rows))


def _speed_line(row: Row) -> list[str]:
    return [_named(row), _ms(row.micro_batch_us), str(row.delay), str(row.versions)]


def _micro_batch_us(row: Row) -> float:
    assert row.micro_batch_us is not None
    return row.micro_batch_us


def _named(row: Row) -> str:
    flush = "" if row.delay else ", with a flush after 48 micro-batches"
    return f"`{row.schedule}`{flush}"


def _ms(time_us: float | None) -> str:
    return "–" if time_us is None else f"{time_us / 1e3:.3f}"


class BoundsRow(NamedTuple):
    """A search without a flush: times of a micro-batch in µs, and two of its lower bounds."""

    versions: str
    limit: str
    found_us: float
    peak_bytes: int
    closed_forms_us: float
    all_states_us: float


def _searched() -> Iterator[BoundsRow]:
    for versions in ("2bw:every=16", "stash"):
        for limit in ("30GB", "29.6GB"):
            command = _SEARCH.replace("2bw:every=16", versions).replace("30GB", limit)
            row = solved(command)
            assert row.lower_bound_us is not None
            yield BoundsRow(
                versions,
                limit,
                _micro_batch_us(row),
                row.peak_bytes,
                _closed_forms_us(versions, limit, row.partition),
                row.lower_bound_us,
            )


def _closed_forms_us(versions: str, limit: str, partition: Sequence[int]) -> float:
    """Return the bound in closed form of the problem that the command solves."""
    profile = load_profile("zb-1.5b-p8-m24", ["10us,2GB/s"])
    problem = Problem(
        partition_costs(profile, partition),
        family_placement("1f1b", 8),
        48,
        caps_bytes=(parse_bytes(limit),) * 8,
    )
    return closed_form_us(FlushFreeProblem.parse(versions, problem))


def _searched_table(document: Mapping[str, Any]) -> str:
    heads = (
        "`--versions`", "`--mem-limit`", "found, ms", "peak, GB", "closed forms", "gap",
        "all states", "gap",
    )  # fmt: skip
    return markdown_table(heads, (_bounds_line(BoundsRow(**row)) for row in document["rows"]))


def _bounds_line(row: BoundsRow) -> list[str]:
    bounds = (row.closed_forms_us, row.all_states_us)
    cells = (cell for us in bounds for cell in (_ms(us), f"{100 * (1 - us / row.found_us):.2f} %"))
    return [
        f"`{row.versions}`",
        row.limit,
        _ms(row.found_us),
        f"{row.peak_bytes / 1e9:.1f}",
        *cells,
    ]


def _planners_table(document: Mapping[str, Any]) -> str:
    heads = (
        "schedule", "layers per stage", "predicted, ms per micro-batch", "simulated",
        "highest peak, MB", "delay",
    )  # fmt: skip
    rows = sorted((row for row in rows_of(document) if row.fits), key=_micro_batch_us)
    return markdown_table(heads, map(_planner_line, rows))


def _planner_line(row: Row) -> list[str]:
    return [
        _named(row),
        ",".join(map(str, row.partition)),
        _ms(row.predicted_us),
        _ms(row.micro_batch_us),
        f"{row.peak_bytes / 1e6:.1f}",
        str(row.delay),
    ]


TABLES = (
    PageTable(
        "without-flush",
        "notes/flush-free.md",
        "published schedules without a flush, and with one.",
        (_SPEED,),
        lambda: compared(_SPEED),
        _speed_table,
        is_exact=True,
    ),
    PageTable(
        "searched-without-flush",
        "notes/flush-free.md",
        "deterministic searches, with two lower bounds.",
        (_SEARCH,),
        _searched,
        _searched_table,
    ),
    PageTable(
        "planners",
        "notes/flush-free.md",
        "the choices of two published planners, beside published and searched schedules.",
        (_PLANNERS,),
        lambda: compared(_PLANNERS),
        _planners_table,
        has_search=True,
    ),
)
