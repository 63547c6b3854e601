"""Summarizes the samples of all ranks as lines of the table."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.executor.case import Case
from benchmarks.executor.measure import Sample

# Sums of float32 in another order.
_MOST_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Row:
    """A case and our figures over PyTorch's; times are medians over the rounds.

    Attributes:
        step: ratio of the slowest rank's step times.
        cpu: ratio of the processor times of all ranks.
        own: ratio of the processor times of all ranks beyond that of plain autograd.
        peak: ratio of the largest rank's peaks above parameters and gradients.
        op_us: processor time per compute op, ours and theirs.
        own_us: that beyond plain autograd's.
    """

    case: Case
    rival: str
    step: float
    cpu: float
    own: float
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
        case,
        rival,
        _median_ratio(wall["ours"], wall[rival]),
        _median_ratio(cpu["ours"], cpu[rival]),
        own_us[0] / own_us[1] if own_us[1] > 0 else math.nan,
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
    """One line of the table."""
    case = row.case
    return [
        case.schedule,
        "yes" if case.split else "no",
        str(case.num_ranks),
        str(case.num_micro_batches),
        case.stages,
        "yes" if case.checkpoint else "no",
        row.rival,
        *(f"{ratio:.2f}" for ratio in (row.step, row.cpu, row.own, row.peak)),
        *(f"{value:.0f}" for value in (*row.op_us, *row.own_us)),
        *(f"{value:.1f}" for value in row.step_ms),
        *(f"{value / 1024:.0f}" for value in row.peak_bytes),
    ]
