"""The table of the benchmark of ways to reduce gradients."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table

FORMAT = "synth-data-parallel-benchmark-1"


class Row(NamedTuple):
    """A way to reduce gradients, with the median time of a step of the slowest rank."""

    layers: int
    width: int
    way: str
    step_ms: float


# The way with which the others are compared.
BASE = "data_parallel"


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    rows = [Row(**row) for row in document["rows"]]
    base_ms = {(row.layers, row.width): row.step_ms for row in rows if row.way == BASE}
    heads = ("layers", "width", "way", "step, ms", f"time of `{BASE}` / time of this way")
    return markdown_table(heads, (_line(row, base_ms[row.layers, row.width]) for row in rows))


def _line(row: Row, base_ms: float) -> list[str]:
    ratio = "" if row.way == BASE else f"{base_ms / row.step_ms:.2f}"
    return [str(row.layers), str(row.width), row.way, f"{row.step_ms:.1f}", ratio]
