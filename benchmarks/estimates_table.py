"""The table of the benchmark of estimates: a line per stack, which are never pooled."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table

FORMAT = "synth-estimates-benchmark-2"


class Row(NamedTuple):
    """The errors of the rows of a source's programs on one device, as shares of the measured time.

    Attributes:
        stack: the source's programs.
        device: the name of the device.
        models: dense or moe.
        rows: published steps.
        before: median error without calibration, of the rows that the calibration does not use.
        shipped: the same under the shipped factors; None: these were fitted to such rows.
        shipped_p90: the 90th percentile.
        used: rows that the calibration used, chosen without their times.
        after: median error of the others after it; None: there are no others.
        after_p90: their 90th percentile.
        any_three: the median over random choices of three rows.
        any_three_p90: the 90th percentile over them.
        pairs: pairs of rows that the calibration does not use, of the same model, GPUs, sequence
            length, precision, and tokens or micro-batches of a step, that differ by more than 5 %.
        ordered: of them those that the calibrated estimate orders right.
        regret: how much slower the best layouts by estimate are than the best measured, in the
            mean over such groups; None: there are none.
        memory_rows: rows with a peak of allocated memory.
        memory: median error of the peaks; None: there are none.
        memory_worst: their largest error.
    """

    stack: str
    device: str
    models: str
    rows: int
    before: float
    shipped: float | None
    shipped_p90: float | None
    used: int
    after: float | None
    after_p90: float | None
    any_three: float | None
    any_three_p90: float | None
    pairs: int
    ordered: int
    regret: float | None
    memory_rows: int
    memory: float | None
    memory_worst: float | None


HEADS = (
    "stack",
    "device",
    "models",
    "rows",
    "before",
    "as shipped: median",
    "90 %",
    "used",
    "after: median",
    "90 %",
    "any three: median",
    "90 %",
    "pairs in order",
    "regret",
    "memory: rows",
    "median",
    "worst",
)


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown; errors in percent."""
    return markdown_table(HEADS, (_line(Row(**row)) for row in document["rows"]))


def _line(row: Row) -> list[str]:
    return [
        row.stack,
        row.device,
        row.models,
        str(row.rows),
        _percent(row.before),
        _percent(row.shipped),
        _percent(row.shipped_p90),
        str(row.used),
        _percent(row.after),
        _percent(row.after_p90),
        _percent(row.any_three),
        _percent(row.any_three_p90),
        f"{row.ordered} of {row.pairs}" if row.pairs else "",
        _percent(row.regret),
        str(row.memory_rows or ""),
        _percent(row.memory),
        _percent(row.memory_worst),
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
