"""Throughput: tokens per second, and the share of the devices' peak that the model's FLOPs take."""

from dataclasses import dataclass
from typing import Any, Protocol

from synth.profile.model_flops import ModelFlops, format_flops
from synth.profile.workload import Workload


class Trained(Protocol):
    """An object that says what is trained: a profile, or a plan."""

    @property
    def workload(self) -> Workload:
        """The tokens of a micro-batch, and their unit."""

    @property
    def flops(self) -> ModelFlops | None:
        """The FLOPs of a micro-batch, if they are known."""


@dataclass(frozen=True)
class Throughput:
    """The throughput of all ranks together.

    Attributes:
        unit: tokens, or samples of other inputs.
        per_s: tokens or samples per second; None: an iteration takes no time.
        rank_flops_per_s: FLOP/s of the model by each rank in the mean, without recomputation;
            None: the FLOPs or the time are not known.
        mfu: the share of that in the peak of a rank's device; None: the peak is not known either.
    """

    unit: str
    per_s: float | None = None
    rank_flops_per_s: float | None = None
    mfu: float | None = None

    @property
    def words(self) -> str:
        """The figures in a line: `5,060 tokens/s, MFU 41.20 %`; empty if there are none."""
        if self.per_s is None:
            return ""
        speed = f"{self.per_s:,.0f} {self.unit}/s"
        if self.mfu is not None:
            return f"{speed}, MFU {self.mfu:.2%}".replace("%", " %")
        if self.rank_flops_per_s is not None:
            return f"{speed}, {format_flops(self.rank_flops_per_s)}/s per rank"
        return speed

    @property
    def cell(self) -> str:
        """The tokens or samples per second in a table."""
        return "n/a" if self.per_s is None else f"{self.per_s:,.0f}"

    def mfu_cell(self, decimals: int = 2) -> str:
        """The MFU in a table, in percent."""
        return "n/a" if self.mfu is None else f"{100 * self.mfu:.{decimals}f}"

    def as_json(self) -> dict[str, Any]:
        """The figures for scripts."""
        return {
            "tokens_per_second": self.per_s,
            "model_flops_per_second_per_rank": self.rank_flops_per_s,
            "mfu": self.mfu,
        }


def throughput(
    iterations_per_s: float | None, num_micro_batches: int, num_ranks: int, of: Trained
) -> Throughput:
    """Return the throughput of iterations one after another.

    Args:
        iterations_per_s: the iterations per second of all pipelines together; None: an iteration
            takes no time.
        num_ranks: the ranks of all pipelines.
        of: says how many tokens and FLOPs a micro-batch has.
    """
    unit = of.workload.unit
    if iterations_per_s is None:
        return Throughput(unit)
    micro_batches_per_s = iterations_per_s * num_micro_batches
    per_s = micro_batches_per_s * of.workload.tokens
    if of.flops is None:
        return Throughput(unit, per_s)
    rank_flops_per_s = micro_batches_per_s * of.flops.per_micro_batch / num_ranks
    peak = of.flops.peak_per_s
    mfu = None if peak is None else rank_flops_per_s / peak
    return Throughput(unit, per_s, rank_flops_per_s, mfu)
