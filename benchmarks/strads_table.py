"""The tables of the benchmark of scheduled model parallelism."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks.results_file import Table, markdown_table

FORMAT = "synth-strads-benchmark-1"


class Row(NamedTuple):
    """The rounds and updates until a problem's objective is near its optimum; None: never.

    Attributes:
        correlation: of the features of a group; 0: all features are independent.
        penalty_share: of the least penalty for which all coefficients are 0.
        sampler: the order in which parameters are drawn.
        threshold: of the dependency check; None: there is none.
        depth: the rounds from a push to its pull.
        tolerance: the distance of the objective from the optimum, as a share of the optimum.
        diverged: the objective grew beyond all bounds.
    """

    correlation: float
    seed: int
    penalty_share: float
    sampler: str
    block_size: int
    threshold: float | None
    depth: int
    tolerance: float
    rounds: int | None
    updates: int | None
    diverged: bool


def _by_check(
    document: Mapping[str, Any],
    head: str,
    is_wanted: Callable[[Row], bool],
    setting: Callable[[Row], int],
) -> str:
    """Rounds and updates of correlated features without and with the check, by a setting."""
    rows = [row for row in _rows(document) if row.correlation and is_wanted(row)]
    thresholds = list(dict.fromkeys(row.threshold for row in rows))
    names = ["no check" if each is None else f"ρ = {each:g}" for each in thresholds]
    heads = [f"{figure}, {name}" for figure in ("rounds", "updates") for name in names]
    lines = []
    for each in dict.fromkeys(map(setting, rows)):
        groups = [
            [row for row in rows if setting(row) == each and row.threshold == threshold]
            for threshold in thresholds
        ]
        figures = (*map(_rounds, groups), *map(_updates, groups))
        lines.append([str(each), *figures])
    return markdown_table([head, *heads], lines)


def _by_order(document: Mapping[str, Any]) -> str:
    """Updates of independent features until each tolerance, by penalty and order."""
    rows = [row for row in _rows(document) if not row.correlation]
    tolerances = list(dict.fromkeys(row.tolerance for row in rows))
    lines = []
    for share, sampler in dict.fromkeys((row.penalty_share, row.sampler) for row in rows):
        own = [row for row in rows if (row.penalty_share, row.sampler) == (share, sampler)]
        groups = [[row for row in own if row.tolerance == each] for each in tolerances]
        lines.append([f"{share:g}", sampler, *map(_updates, groups)])
    return markdown_table(["λ", "order", *(f"{each:g}" for each in tolerances)], lines)


def _rows(document: Mapping[str, Any]) -> list[Row]:
    return [Row(**row) for row in document["rows"]]


def _rounds(rows: Sequence[Row]) -> str:
    return _middle(rows, [row.rounds for row in rows])


def _updates(rows: Sequence[Row]) -> str:
    return _middle(rows, [row.updates for row in rows])


def _middle(rows: Sequence[Row], figures: Sequence[int | None]) -> str:
    """The median over the problems, where None is more than any number."""
    diverged = sum(row.diverged for row in rows)
    if diverged:
        return f"{diverged} of {len(rows)} diverge{'s' * (diverged == 1)}"
    middle = median(math.inf if figure is None else figure for figure in figures)
    return "–" if math.isinf(middle) else f"{middle:.0f}"


TABLES: dict[str, Table] = {
    "blocks": partial(
        _by_check,
        head="block size P",
        is_wanted=lambda row: not row.depth,
        setting=lambda row: row.block_size,
    ),
    "order": _by_order,
    "depth": partial(
        _by_check,
        head="depth",
        is_wanted=lambda row: row.block_size == 4,
        setting=lambda row: row.depth,
    ),
}
