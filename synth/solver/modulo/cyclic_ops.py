"""Ops that repeat every initiation interval: their start variables, precedences, and schedules.

    rank 0 | F0 F1 .. B0 W0 B1 W1 |        the micro-batches of one interval, here two
    rank 1 |    F0 F1 B0 B1 W0 W1 |        the next two do the same T later, and so on:
           |<--------- T -------->|        ops that are T apart are one op of the model

Op (kind, k) with k beyond the micro-batches of an interval is that of a later one. The intervals
between the two ops of a precedence are its iteration distance (Rau 1994).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from synth.op_kinds import OpKind
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import Values
from synth.solver.instance.instance import BW, SPLIT, B, F, Instance, Node, OpIndex, W
from synth.solver.instance.timing import Pair, TimedOrders

Expression: TypeAlias = "cp_model.LinearExpr | int"


@dataclass(frozen=True)
class CyclicSchedule:
    """The starts of the ops of the first `size` micro-batches; the next follow an interval later.

    Attributes:
        starts: in the unit of the interval.
        fused: stage copies whose B and W are one op.
    """

    starts: dict[Node, int]
    interval: int
    size: int = 1
    fused: frozenset[int] = frozenset()

    @property
    def rate(self) -> float:
        """The time per micro-batch in the steady state."""
        return self.interval / self.size

    def unrolled(self, instance: Instance, first: int = 0) -> TimedOrders:
        """Return the starts of all micro-batches of an instance: prologue and epilogue are those
        that are not there yet or no more.

        Args:
            instance: gives the numbers of micro-batches.
            first: the micro-batch of the interval with which the schedule begins.
        """
        starts = {}
        for index, copy in enumerate(instance.copies):
            for k in range(copy.num_micro_batches):
                intervals, microbatch = divmod(k + first, self.size)
                for kind in SPLIT:
                    at = self.starts[index, OpIndex(kind, microbatch)]
                    starts[index, OpIndex(kind, k)] = at + intervals * self.interval
        pairs = (Pair(i, k, k) for i in self.fused for k in range(instance[i].num_micro_batches))
        return TimedOrders(starts, frozenset(pairs))


def with_times(
    instance: Instance, duration: Callable[[int], int], lag: Callable[[int], int]
) -> Instance:
    """Return an instance with its durations and the times of its transfers in another unit."""
    copies = (
        copy._replace(
            duration_us={kind: duration(us) for kind, us in copy.duration_us.items()},
            down_us=lag(copy.down_us),
            up_us=lag(copy.up_us),
        )
        for copy in instance.copies
    )
    return replace(instance, copies=tuple(copies))


class CyclicOps:
    """The start variables of the ops of one interval, and precedences between them.

    Attributes:
        start: by op of the first interval.
        fused: by stage copy, a literal: its B and W are one op.
    """

    def __init__(
        self,
        cp: cp_model.CpModel,
        instance: Instance,
        interval: int,
        latest: int,
        *,
        size: int = 1,
        update: tuple[int, ...] = (),
        is_fusible: bool = False,
    ) -> None:
        """Add the variables to a model.

        Args:
            instance: its times are in the unit of the interval.
            latest: of all starts.
            size: micro-batches of an interval.
            update: by stage copy, the time of an update after each W.
            is_fusible: let B and W be one op where that gains.
        """
        self.cp, self.instance, self.interval, self.size = cp, instance, interval, size
        self._update = update or (0,) * len(instance)
        self.start = {
            (index, OpIndex(kind, microbatch)): cp.new_int_var(0, latest, "")
            for index in range(len(instance))
            for kind in SPLIT
            for microbatch in range(size)
        }
        cp.add(self.start[0, OpIndex(F, 0)] == 0)
        self.fused = {
            index: cp.new_bool_var("")
            for index, copy in enumerate(instance.copies)
            if is_fusible and copy.gains_by_fusion
        }

    def at(self, node: Node) -> Expression:
        """Return the start of an op of any micro-batch, in this interval or another one."""
        copy, (kind, k) = node
        intervals, microbatch = divmod(k, self.size)
        return self.start[copy, OpIndex(kind, microbatch)] + intervals * self.interval

    def duration(self, copy: int, kind: OpKind) -> Expression:
        """Return the time of an op, with the update after W; a fused B takes all of BW."""
        times = self.instance[copy].duration_us
        split = times[kind] + (self._update[copy] if kind == W else 0)
        if copy not in self.fused or kind == F:
            return split
        return split + ((times[BW] if kind == B else 0) - times[kind]) * self.fused[copy]

    def end(self, node: Node) -> Expression:
        """Return the end of an op of any micro-batch."""
        return self.at(node) + self.duration(node[0], node[1].kind)

    def precede(self, first: Node, second: Node, lag: int = 0) -> cp_model.Constraint:
        """Let an op start after the end of another one, and a lag."""
        return self.cp.add(self.at(second) >= self.end(first) + lag)

    def read(self, values: Values) -> CyclicSchedule:
        """Return the schedule of a solution."""
        starts = {node: values.value(start) for node, start in self.start.items()}
        fused = frozenset(i for i, literal in self.fused.items() if values.value(literal))
        return CyclicSchedule(starts, self.interval, self.size, fused)
