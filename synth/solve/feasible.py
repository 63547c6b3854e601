"""Whether a cap can be kept at all, in closed form, before any search.

A rank cannot need less than one micro-batch alone: whatever else it holds only adds to that, and
the serial schedule F0 B0 W0 F1 B1 W1 … (or with BW, where that needs less) reaches it. It cannot
deadlock, because every rank passes the micro-batches one by one.
"""

from dataclasses import dataclass

from synth.kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.solve.problem import Problem
from synth.solve.ranks import BW, STEP, B, F, Rank, W, certain
from synth.units import format_bytes, format_bytes_both


@dataclass(frozen=True)
class Shortage:
    """Why no schedule fits: what the first failing rank needs at least, and what would fit.

    `partition` is what the claim is about; with `of_all` no other one fits, nor does any fit under
    a smaller limit for all ranks.
    """

    rank: int
    cap_bytes: int
    static_bytes: int
    micro_batch_bytes: int
    smallest_cap_bytes: int
    partition: tuple[int, ...] | None = None
    of_all: bool = False

    @property
    def needed_bytes(self) -> int:
        """What this rank cannot do without."""
        return self.static_bytes + self.micro_batch_bytes

    def __str__(self) -> str:
        """The explanation, with every way out."""
        needed, cap = _told_apart(self.needed_bytes, self.cap_bytes)
        return (
            f"no schedule fits{self._scope}: rank {self.rank} needs {needed} "
            f"even with one micro-batch at a time, and may hold {cap}\n"
            f"  static (weights, gradients, optimizer): {format_bytes_both(self.static_bytes)}\n"
            f"  one micro-batch alone:                  "
            f"{format_bytes_both(self.micro_batch_bytes)}\n"
            f"  smallest feasible --mem-limit:          {self.smallest_cap_bytes}B "
            f"({format_bytes_both(self.smallest_cap_bytes)}, {self._limit_is})\n"
            f"other ways out: more ranks, a smaller micro-batch, activation checkpointing"
            f"{self._other_partition}"
        )

    @property
    def _sizes(self) -> str:
        return ",".join(map(str, self.partition or ()))

    @property
    def _scope(self) -> str:
        """What the claim is about, words that go before the colon."""
        if self.of_all:
            return f" in any partition. In {self._sizes}, which needs the smallest limit"
        return f" for this partition ({self._sizes})" if self.partition else ""

    @property
    def _limit_is(self) -> str:
        if self.of_all:
            return f"with the partition {self._sizes}; every other one needs that much or more"
        given = f" for this partition ({self._sizes})" if self.partition else ""
        return f"the largest need of any rank{given}"

    @property
    def _other_partition(self) -> str:
        if self.of_all:
            return ""
        automatic = "; --partition auto looks for one" if self.partition else ""
        return f", a partition with fewer layers on rank {self.rank}{automatic}"


def _told_apart(first_bytes: int, second_bytes: int) -> tuple[str, str]:
    """Both sizes for people, with the exact counts where they would read alike."""
    alike = format_bytes(first_bytes) == format_bytes(second_bytes)
    first, second = (
        f"{format_bytes_both(size)}{f' = {size:,} bytes' if alike else ''}"
        for size in (first_bytes, second_bytes)
    )
    return first, second


def find_shortage(problem: Problem) -> Shortage | None:
    """Say why no schedule keeps the caps, or None if the serial one does."""
    if problem.caps_bytes is None:
        return None
    needed = needed_bytes(problem)
    for rank, cap in enumerate(problem.caps_bytes):
        if needed[rank] > cap:
            static = problem.costs.stages[rank].static_bytes
            alone = needed[rank] - static
            about = (problem.partition, problem.partition_is_best)
            return Shortage(rank, cap, static, alone, max(needed), *about)
    return None


def needed_bytes(problem: Problem) -> tuple[int, ...]:
    """The least that each rank can hold: its static bytes and one micro-batch alone."""
    alone = [one_micro_batch_bytes(rank)[0] for rank in certain(problem).ranks]
    stages = problem.costs.stages
    return tuple(stage.static_bytes + b for stage, b in zip(stages, alone, strict=True))


def one_micro_batch_bytes(rank: Rank) -> tuple[int, bool]:
    """The peak of one micro-batch alone above the static bytes, and whether BW is what needs least.

    When the gradient's receive is posted, the activation that was just sent is still there: before
    the first B of a rank stands an F in every schedule.
    """
    need = rank.need_bytes
    handover = rank.live_f_bytes + rank.sent_bytes + rank.send_bytes
    split = max(rank.live_f_bytes + need[B], rank.live_b_bytes + need[W])
    fused = rank.live_f_bytes + need[BW]
    peak = max(need[F], handover, need[STEP], min(split, fused))
    return peak, fused < split and split > max(need[F], handover, need[STEP])


def serial_schedule(problem: Problem) -> Schedule:
    """One micro-batch at a time, boundary buffers for as short as can be: the least memory."""
    programs = []
    for stage, rank in enumerate(certain(problem).ranks):
        kinds: tuple[OpKind, ...] = (F, BW) if one_micro_batch_bytes(rank)[1] else (F, B, W)
        rounds = range(problem.num_micro_batches)
        programs.append(tuple(Op(kind, stage, j) for j in rounds for kind in kinds))
    return Schedule(
        problem.placement, problem.num_micro_batches, tuple(programs), "serial", Buffering(0, 0)
    )
