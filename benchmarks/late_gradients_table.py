"""The table of the benchmark of late gradients."""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table

FORMAT = "synth-late-gradients-benchmark-2"


class Row(NamedTuple):
    """The training with a schedule, a learning rate and a seed.

    Attributes:
        update_size: the micro-batches of an update.
        delays: the largest delay of the gradients of each stage, in updates.
        rate: the learning rate of AdamW.
        seed: that of the model and of the micro-batches.
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
    """A saved run in Markdown: each schedule at each rate, the best rate in bold."""
    rows = [Row(**row) for row in document["rows"]]
    rates = sorted({row.rate for row in rows})
    heads = (
        "schedule", "micro-batches per update", "delay by stage",
        *(f"loss at {rate:g}" for rate in rates),
    )  # fmt: skip
    schedules = dict.fromkeys(row.schedule for row in rows)
    return markdown_table(heads, (_line(rows, name, rates) for name in schedules))


def _line(rows: Iterable[Row], schedule: str, rates: Iterable[float]) -> Iterator[str]:
    own = [row for row in rows if row.schedule == schedule]
    best = best_rate(own)
    yield from (schedule, str(own[0].update_size), " ".join(map(str, own[0].delays)))
    for rate in rates:
        losses = [row.loss for row in own if row.rate == rate]
        spread = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
        shown = f"{statistics.mean(losses):.3f}{spread}" if losses else ""
        yield f"**{shown}**" if rate == best else shown


def best_rate(rows: Iterable[Row]) -> float:
    """Return the learning rate with the least mean loss."""
    by_rate: dict[float, list[float]] = {}
    for row in rows:
        by_rate.setdefault(row.rate, []).append(row.loss)
    return min(by_rate, key=lambda rate: statistics.mean(by_rate[rate]))


def line(row: Row) -> Iterator[str]:
    """The cells of a printed row."""
    yield from (row.schedule, " ".join(map(str, row.delays)), f"{row.rate:g}", str(row.seed))
    yield f"{row.loss:.3f}"
