"""The table of the benchmark of late gradients."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table

FORMAT = "synth-late-gradients-benchmark-1"


class Row(NamedTuple):
    """The training with a schedule.

    Attributes:
        update_size: the micro-batches of an update.
        delays: the largest delay of the gradients of each stage, in updates.
        loss: the mean over the last eighth of the micro-batches, in nats per byte.
        curve: tokens and loss, means over equal shares of the run.
    """

    schedule: str
    update_size: int
    delays: tuple[int, ...]
    loss: float
    curve: tuple[tuple[float, float], ...]


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    heads = (
        "schedule", "micro-batches per update", "delay by stage", "loss over the last eighth",
    )  # fmt: skip
    return markdown_table(heads, (line(Row(**row)) for row in document["rows"]))


def line(row: Row) -> Iterator[str]:
    """The cells of a line."""
    yield from (row.schedule, str(row.update_size), " ".join(map(str, row.delays)))
    yield f"{row.loss:.3f}"
