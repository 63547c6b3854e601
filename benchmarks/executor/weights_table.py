"""The table of the benchmark of passing weights."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table

FORMAT = "synth-executor-weights-benchmark-1"


class Row(NamedTuple):
    """A system's step, median over the rounds.

    Attributes:
        tokens: of a micro-batch; each is a vector of `width` numbers.
        step_ms: time of the slowest rank.
        cpu_ms: processor time of all ranks.
        sent_bytes: on the loopback interface, by all ranks (Linux; else 0).
        peak_bytes: the largest rank's allocated bytes, parameters and gradients included. Buffers
            that gloo allocates in its own threads do not count.
    """

    tokens: int
    width: int
    ranks: int
    system: str
    step_ms: float
    cpu_ms: float
    sent_bytes: int
    peak_bytes: int


_NAMES = {"1f1b": "1F1B", "weipipe": "WeiPipe", "zero3:1": "ZeRO-3", "fsdp2": "FSDP2"}


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    heads = (
        "T", "H", "ranks", "system", "step, ms", "CPU of all ranks, ms", "sent, MB", "peak, MB",
    )  # fmt: skip
    return markdown_table(heads, (_line(Row(**row)) for row in document["rows"]))


def _line(row: Row) -> Iterator[str]:
    yield from (str(row.tokens), str(row.width), str(row.ranks), _NAMES[row.system])
    yield from (f"{row.step_ms:.0f}", f"{row.cpu_ms:.0f}")
    yield from (f"{num_bytes / 1e6:.1f}" for num_bytes in (row.sent_bytes, row.peak_bytes))
