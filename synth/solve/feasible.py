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
from synth.units import format_bytes_both


@dataclass(frozen=True)
class Shortage:
    """Why no schedule fits: what the first failing rank needs at least, and what would fit."""

    rank: int
    cap_bytes: int
    static_bytes: int
    micro_batch_bytes: int
    smallest_cap_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What this rank cannot do without."""
        return self.static_bytes + self.micro_batch_bytes

    def __str__(self) -> str:
        """The explanation, with every way out."""
        return (
            f"no schedule fits: rank {self.rank} needs {format_bytes_both(self.needed_bytes)} "
            f"even with one micro-batch at a time, and may hold "
            f"{format_bytes_both(self.cap_bytes)}\n"
            f"  static (weights, gradients, optimizer): {format_bytes_both(self.static_bytes)}\n"
            f"  one micro-batch alone:                  "
            f"{format_bytes_both(self.micro_batch_bytes)}\n"
            f"  smallest feasible --mem-limit:          {self.smallest_cap_bytes}B "
            f"({format_bytes_both(self.smallest_cap_bytes)}, the largest need of any rank)\n"
            f"other ways out: more ranks, a smaller micro-batch, activation checkpointing, a "
            f"partition with fewer layers on rank {self.rank}"
        )


def find_shortage(problem: Problem) -> Shortage | None:
    """Say why no schedule keeps the caps, or None if the serial one does."""
    if problem.caps_bytes is None:
        return None
    stages = problem.costs.stages
    alone = [one_micro_batch_bytes(rank)[0] for rank in certain(problem).ranks]
    needed = [stage.static_bytes + b for stage, b in zip(stages, alone, strict=True)]
    for rank, cap in enumerate(problem.caps_bytes):
        if needed[rank] > cap:
            return Shortage(rank, cap, stages[rank].static_bytes, alone[rank], max(needed))
    return None


def one_micro_batch_bytes(rank: Rank) -> tuple[int, bool]:
    """The peak of one micro-batch alone above the static bytes, and whether BW is what needs least.

    When the gradient's receive is posted, the activation that was just sent is still there: before
    the first B of a rank stands an F in every schedule.
    """
    need = rank.need_bytes
    handover = rank.live_f_bytes + 2 * rank.send_bytes
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
