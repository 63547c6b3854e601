"""The tables of notes/results.md: recomputation by memory limit."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.page_tables.commands import Row, rows_of, solved
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table

_SOLVE = (
    "synth solve zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --mem-limit 16GB --workers 1 "
    "--time-limit 60s"
)


def _recomputation(profile: str, limits: Sequence[str]) -> Iterator[Row]:
    for limit in limits:
        command = _SOLVE.replace("zb-1.5b-p8-m24", profile).replace("16GB", limit)
        yield solved(command, limit)


def _table(document: Mapping[str, Any]) -> str:
    rows = rows_of(document)
    return markdown_table(
        ("memory limit", *(row.case.replace("GB", " GB") for row in rows)),
        [["makespan, ms", *(f"{row.makespan_us / 1e3:,.0f}" for row in rows)]],
    )


TABLES = (
    PageTable(
        "recomputation-1.5b",
        "notes/results.md",
        "1.5B, 8 ranks, 24 micro-batches.",
        (_SOLVE,),
        partial(
            _recomputation,
            "zb-1.5b-p8-m24",
            ("16GB", "18GB", "20GB", "22GB", "24GB", "30GB", "36GB"),
        ),
        _table,
        has_search=True,
    ),
    PageTable(
        "recomputation-6.2b",
        "notes/results.md",
        "6.2B, 8 ranks, 24 micro-batches.",
        (),
        partial(
            _recomputation,
            "zb-6.2b-p8-m24",
            ("26GB", "28GB", "30GB", "33GB", "42GB", "50GB"),
        ),
        _table,
        has_search=True,
    ),
)
