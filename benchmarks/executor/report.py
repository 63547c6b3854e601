"""Summarizes the samples of all ranks as rows, their lines and their table."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.executor.case import Case
from benchmarks.executor.sample import Sample
from benchmarks.results_file import markdown_table

FORMAT = "synth-executor-benchmark-1"
# PyTorch's classes by the names of its runtimes in a measurement.
_CLASSES = {"pytorch": "runtime", "native": "native"}
# Sums of float32 in another order.
_MOST_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Row:
    """A case and our figures over PyTorch's; times are medians over the rounds.

    Attributes:
        splits: B and W are ops of their own; None: some, as the order has them.
        against: the class of PyTorch: `runtime`, which replays our order, or `native`.
        step: ratio of the slowest rank's step times.
        cpu: ratio of the processor times of all ranks.
        own: ratio of the processor times of all ranks beyond that of plain autograd; None if
            theirs is not above it.
        peak: ratio of the largest rank's peaks above parameters and gradients.
        op_us: processor time per compute op, ours and theirs.
        own_us: that beyond plain autograd's.
    """

    ranks: int
    micro_batches: int
    stages: str
    recomputes: bool
    splits: bool | None
    order: str
    against: str
    step: float
    cpu: float
    own: float | None
    peak: float
    op_us: tuple[float, float]
    own_us: tuple[float, float]
    step_ms: tuple[float, float]
    peak_bytes: tuple[int, int]


def summarize(case: Case, ranks: Sequence[Mapping[str, Sample]]) -> list[Row]:
    """Return one row for each of PyTorch's runtimes.

    Raises:
        AssertionError: the runtimes' losses or gradients differ by more than rounding.
    """
    return [_row(case, name, ranks) for name in ranks[0] if name not in ("ours", "plain")]


def _row(case: Case, rival: str, ranks: Sequence[Mapping[str, Sample]]) -> Row:
    different = max(rank[rival].difference for rank in ranks)
    if not different < _MOST_DIFFERENCE:
        raise AssertionError(f"{case}: {rival} differs from ours by {different:.1e}")
    num_ops = sum(len(program) for program in case.make_schedule().programs)
    wall = {name: _per_round(ranks, name, "wall_s", max) for name in ("ours", rival)}
    cpu = {name: _per_round(ranks, name, "cpu_s", sum) for name in ("ours", rival)}
    plain_us = statistics.median(_per_round(ranks, "plain", "cpu_s", sum)) * 1e6 / num_ops
    op_us = _both(cpu, rival, 1e6 / num_ops)
    own_us = (op_us[0] - plain_us, op_us[1] - plain_us)
    peaks = {name: max(rank[name].peak_bytes for rank in ranks) for name in ("ours", rival)}
    return Row(
        case.num_ranks,
        case.num_micro_batches,
        case.stages,
        case.checkpoint,
        case.split,
        case.schedule,
        _CLASSES[rival],
        _median_ratio(wall["ours"], wall[rival]),
        _median_ratio(cpu["ours"], cpu[rival]),
        own_us[0] / own_us[1] if own_us[1] > 0 else None,
        peaks["ours"] / peaks[rival],
        op_us,
        own_us,
        _both(wall, rival, 1e3),
        (peaks["ours"], peaks[rival]),
    )


def _per_round(
    ranks: Sequence[Mapping[str, Sample]],
    name: str,
    what: str,
    over: Callable[[Iterable[float]], float],
) -> list[float]:
    return [over(round_) for round_ in zip(*(getattr(r[name], what) for r in ranks), strict=True)]


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _both(times: Mapping[str, Sequence[float]], rival: str, scale: float) -> tuple[float, float]:
    ours, theirs = (statistics.median(times[name]) * scale for name in ("ours", rival))
    return ours, theirs


HEADINGS = (
    "schedule", "split", "ranks", "m", "stages", "ckpt", "against",
    "step", "cpu", "own", "peak", "µs/op", "theirs", "own µs", "theirs",
    "step ms", "theirs", "peak KiB", "theirs",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """One line of what is printed."""
    return [
        row.order,
        {True: "yes", False: "no", None: "own"}[row.splits],
        str(row.ranks),
        str(row.micro_batches),
        row.stages,
        "yes" if row.recomputes else "no",
        row.against,
        *_ratios(row),
        *(f"{value:.0f}" for value in (*row.op_us, *row.own_us)),
        *(f"{value:.1f}" for value in row.step_ms),
        *(f"{value / 1024:.0f}" for value in row.peak_bytes),
    ]


def _ratios(row: Row) -> list[str]:
    ratios = (row.step, row.cpu, row.own, row.peak)
    return ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]


def table(document: Mapping[str, Any]) -> str:
    """A saved run in Markdown: a ratio for each number of micro-batches in a cell."""
    rows = [Row(**row) for row in document["rows"]]
    counts = sorted({row.micro_batches for row in rows})
    shown = statistics.median_low(counts)
    heads = (
        "ranks", "stages", "recomputed", "backward", "order", "against", "step", "CPU", "own CPU",
        "peak", f"own CPU per op, µs (m = {shown})",
    )  # fmt: skip
    lines: defaultdict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.micro_batches):
        lines[_name(row)].append(row)
    order = dict.fromkeys(map(_name, rows))
    return markdown_table(heads, ((*name, *_figures(lines[name], shown)) for name in order))


def _name(row: Row) -> tuple[str, ...]:
    """The cells of a line that say what was compared."""
    recomputes = "yes" if row.recomputes else "no"
    backward = {True: "B, W", False: "BW", None: "both"}[row.splits]
    return str(row.ranks), row.stages, recomputes, backward, row.order, row.against


def _figures(rows: Sequence[Row], shown: int) -> list[str]:
    own_us = next((row.own_us for row in rows if row.micro_batches == shown), None)
    ratios = zip(*map(_ratios, rows), strict=True)
    return [*map(" ".join, ratios), f"{own_us[0]:.0f} / {own_us[1]:.0f}" if own_us else ""]
