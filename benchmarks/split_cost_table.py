"""The table of the cost of splitting the backward."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table

FORMAT = "synth-split-cost-benchmark-1"


class Row(NamedTuple):
    """A layer's ratios of times, medians over the rounds, and the bytes that it holds.

    None: torch's split raises for this layer.

    Attributes:
        fused_ms: the time of F and BW.
        split_over_fused: the time of F, B and W over that of F and BW.
        fused_over_autograd: F and BW over autograd's forward and backward.
        split_over_autograd: F, B and W over the same.
        pytorch_over_autograd: torch's own split over the same.
        after_f_bytes: held after F, and next by autograd after its forward.
        after_b_bytes: held between B and W, and next by torch's split.
        deferred_share: of the elements of the trained weights, those whose gradients wait for W;
            None: it was not counted.
    """

    layer: str
    dtype: str
    fused_ms: float
    split_over_fused: float
    fused_over_autograd: float
    split_over_autograd: float
    pytorch_over_autograd: float | None
    after_f_bytes: int
    autograd_after_f_bytes: int
    after_b_bytes: int
    pytorch_after_b_bytes: int | None
    deferred_share: float | None = None


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown."""
    heads = (
        "layer", "dtype", "F+BW ms", "(F+B+W) / (F+BW)", "(F+BW) / autograd",
        "(F+B+W) / autograd", "PyTorch's split / autograd", "MiB after F", "after autograd's F",
        "after B", "after PyTorch's input pass", "waits for W",
    )  # fmt: skip
    return markdown_table(heads, (_line(Row(**row)) for row in document["rows"]))


def _line(row: Row) -> Iterator[str]:
    yield from (row.layer, row.dtype, f"{row.fused_ms:.1f}")
    ratios = (
        row.split_over_fused, row.fused_over_autograd, row.split_over_autograd,
        row.pytorch_over_autograd,
    )  # fmt: skip
    yield from ("–" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
    yield from map(_mib, (row.after_f_bytes, row.autograd_after_f_bytes, row.after_b_bytes))
    yield _mib(row.pytorch_after_b_bytes)
    yield "–" if row.deferred_share is None else f"{row.deferred_share * 100:.0f} %"


def _mib(num_bytes: int | None) -> str:
    return "–" if num_bytes is None else f"{num_bytes / 2**20:.2f}"
