"""The table of the benchmark of late gradients."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table

FORMAT = "synth-late-gradients-benchmark-2"


class Row(NamedTuple):
    """The training with a schedule, a rate and a seed.

    Attributes:
        update_size: the micro-batches of an update.
        delays: the largest delay of the gradients of each stage, in updates.
        rate: the learning rate.
        loss: the mean over the last eighth of the micro-batches, in nats per byte.
        curve: tokens and loss, means over equal shares of the run.
    """

    schedule: str
    update_size: int
    delays: tuple[int, ...]
    rate: float
    seed: int
    loss: float
    curve: tuple[tuple[float, float], ...]


def table(document: Mapping[str, Any]) -> str:
    """A line for each schedule: its losses by rate, and its best rate in bold."""
    rows = [Row(**row) for row in document["rows"]]
    rates = sorted({row.rate for row in rows})
    heads = (
        "schedule", "micro-batches per update", "delay by stage",
        *(f"loss at {rate:g}" for rate in rates),
    )  # fmt: skip
    return markdown_table(heads, (_cells(group, rates) for group in _by_schedule(rows)))


def _cells(rows: Sequence[Row], rates: Sequence[float]) -> Iterator[str]:
    first, best = rows[0], best_rate(rows)
    yield from (first.schedule, str(first.update_size), " ".join(map(str, first.delays)))
    for rate in rates:
        losses = [row.loss for row in rows if row.rate == rate]
        shown = f"{median(losses):.3f}" if losses else ""
        if len(losses) > 1:
            shown += f" ({min(losses):.3f} to {max(losses):.3f})"
        yield f"**{shown}**" if rate == best else shown


def best_rate(rows: Sequence[Row]) -> float:
    """Return the rate with the least median loss of a schedule's rows."""
    rates = sorted({row.rate for row in rows})
    return min(rates, key=lambda rate: median(row.loss for row in rows if row.rate == rate))


def best_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of each schedule at its best rate, in their order."""
    best = {group[0].schedule: best_rate(group) for group in _by_schedule(rows)}
    return [row for row in rows if row.rate == best[row.schedule]]


def _by_schedule(rows: Sequence[Row]) -> list[list[Row]]:
    """Group the rows by schedule, in the order in which the schedules come first."""
    order = {name: place for place, name in enumerate(dict.fromkeys(r.schedule for r in rows))}
    ordered = sorted(rows, key=lambda row: order[row.schedule])
    return [[*group] for _, group in groupby(ordered, attrgetter("schedule"))]


def line(row: Row) -> Iterator[str]:
    """Return the cells of a row."""
    yield from (row.schedule, f"{row.rate:g}", str(row.seed), f"{row.loss:.3f}")
