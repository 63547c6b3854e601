"""The table of notes/results.md: makespan and period by objective."""

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.page_tables.commands import Row, rows_of, solved
from benchmarks.page_tables.page_table import PageTable
from benchmarks.results_file import markdown_table

_SOLVE = (
    "synth solve zb-1.5b-p8-m24 --ranks 8 --micro-batches 24 --mem-limit 60GB --placement linear "
    "--partition even --recompute none --gap 0% --time-limit 60s"
)


def _objectives() -> Iterator[Row]:
    for objective in ("makespan", "period", "iterations:4"):
        yield solved(f"{_SOLVE} --objective {objective}", objective)


def _table(document: Mapping[str, Any]) -> str:
    heads = ("objective", "makespan", "period", "status")
    return markdown_table(heads, map(_line, rows_of(document)))


def _line(row: Row) -> list[str]:
    times_us = (row.makespan_us, row.period_us)
    return [f"`{row.case}`", *(f"{us / 1e3:.3f}" for us in times_us), row.schedule]


TABLES = (
    PageTable(
        "objectives",
        "notes/results.md",
        "makespan and period in ms.",
        (_SOLVE,),
        _objectives,
        _table,
        has_search=True,
    ),
)
