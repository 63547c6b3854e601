"""Orders that repeat with every micro-batch: start times of one, and the programs of all."""

from dataclasses import dataclass
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.solver.instance.instance import BW, B, F, Instance, W


class CyclicOp(NamedTuple):
    """An op of the micro-batch that repeats."""

    copy: int
    kind: OpKind


@dataclass(frozen=True)
class CyclicOrder:
    """The starts of the first micro-batch's ops; the next one follows an interval later.

    Attributes:
        starts: in ticks.
        fused: stage copies whose B and W are one op.
        interval: in ticks.
    """

    starts: dict[CyclicOp, int]
    fused: frozenset[int]
    interval: int

    def programs(self, instance: Instance) -> list[list[Op]]:
        """Unroll to all micro-batches: prologue and epilogue are those that are not there yet or
        no more.
        """
        timed: list[list[tuple[int, int, int, int, Op]]] = [[] for _ in instance.headroom_bytes]
        for (index, kind), at in self.starts.items():
            copy = instance[index]
            if kind == W and index in self.fused:
                continue
            run = BW if kind == B and index in self.fused else kind
            # Ops of no duration: F, B, W, and later stages' B's before those of earlier stages.
            depth = index if kind == F else -index
            for k in range(copy.num_micro_batches):
                place = (at + k * self.interval, kind.rank_in_chain, k, depth)
                timed[copy.rank].append((*place, copy.op(run, k)))
        return [[op for *_, op in sorted(ops)] for ops in timed]
