"""The common part of DualPipe and DualPipeV (DeepSeek-AI 2024, arXiv 2412.19437, 3.2.1).

A rank runs two streams of micro-batches. The near stream enters at the rank's own end of a row of
`length` ranks, along which the far stream returns. Backwards are fused (BW) in the middle, where
the paper overlaps the F of one stream with the backward of the other (`pairs`). At both ends B and
W are separate, so that B is sent on early and W fills the gap.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from itertools import count

from synth.families._lib.family import Programs, Setting
from synth.families._lib.pairs import before_backwards
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.simulate import simulate

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW


@dataclass(frozen=True)
class Stream:
    """The stage copy through which micro-batches first, first + 1, … pass on a rank."""

    stage: int
    replica: int = 0
    first: int = 0


def program(near: Stream, far: Stream, place: int, length: int, number: int) -> list[Op]:
    """The ops of the rank at `place` of the row, with `number` micro-batches in each stream.

    There are eight steps. `number` must be at least 2 · length, or the counts of the middle step
    become negative.
    """
    rank = _Rank(near, far)
    behind = length - place - 1
    rank.repeat(2 * behind, rank.f0)
    rank.repeat(place + 1, rank.f0, rank.f1)
    rank.repeat(behind, rank.b1, rank.w, rank.f1)
    rank.repeat(number - 2 * length + place + 1, rank.f0, rank.bw1, rank.f1, rank.bw0)
    rank.repeat(behind, rank.bw1, rank.f1, rank.bw0)
    # Of the place + 1 pairs that are left, the first half are whole and the rest apart.
    whole, odd = divmod(place + 1, 2)
    rank.repeat(whole, rank.bw1, rank.bw0)
    if odd:
        rank.repeat(1, rank.bw1, rank.b0)
    rank.repeat(place + 1 - whole - odd, rank.b1, rank.b0)
    rank.repeat(behind, rank.w, rank.b0)
    rank.repeat(place + 1, rank.w)
    return rank.ops


def pairs(setting: Setting, programs: Programs) -> frozenset[Op]:
    """Return the F's that run at once with the BW behind them: all in the middle, or all but one.

    With all of them the bubble is the paper's. deepseek-ai/DualPipe keeps the first F and BW apart
    where the streams meet, because that BW then hands on its gradient sooner; it pays where little
    time is hidden. The faster of both is taken.
    """
    everywhere = before_backwards(setting, programs)
    if not everywhere:
        return everywhere
    released = everywhere.difference(
        next(op for op in program if op in everywhere)
        for program in programs
        if _meet({op.stage for op in program})
    )
    made = tuple(tuple(program) for program in programs)
    plain = Schedule(setting.placement, setting.num_micro_batches, made)
    return min(
        (released, everywhere),
        key=lambda found: (
            simulate(lower(replace(plain, overlapped=found), setting.costs)).makespan_us
        ),
    )


def _meet(stages: Set[int]) -> bool:
    """True if the streams of a rank meet there: its two stages follow each other."""
    return max(stages) - min(stages) == 1


class _Rank:
    """A rank's program in the making: the next op of each stream, and the W's still to run."""

    def __init__(self, near: Stream, far: Stream) -> None:
        self.ops: list[Op] = []
        self._owed: list[Op] = []
        self.f0, self.f1 = (self._forward(stream) for stream in (near, far))
        (self.b0, self.bw0), (self.b1, self.bw1) = (self._backward(s) for s in (near, far))

    def repeat(self, times: int, *steps: Callable[[], None]) -> None:
        """Run the steps one after another, `times` times."""
        for _ in range(times):
            for step in steps:
                step()

    def w(self) -> None:
        """Run the W that has waited longest."""
        self.ops.append(self._owed.pop(0))

    def _forward(self, stream: Stream) -> Callable[[], None]:
        numbers = count(stream.first)
        return lambda: self.ops.append(Op(F, stream.stage, next(numbers), stream.replica))

    def _backward(self, stream: Stream) -> tuple[Callable[[], None], Callable[[], None]]:
        numbers = count(stream.first)

        def apart() -> None:
            op = Op(B, stream.stage, next(numbers), stream.replica)
            self.ops.append(op)
            self._owed.append(op._replace(kind=W))

        def whole() -> None:
            self.ops.append(Op(BW, stream.stage, next(numbers), stream.replica))

        return apart, whole
