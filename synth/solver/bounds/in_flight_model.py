"""Micro-batches in flight on omitted ranks, in the exact model of some ranks.

Where memory limits what is in flight on an omitted rank that holds several stages, F's and B's of
its stage copies get starts: not more than delays that micro-batches pass in order, but F waits for
B where memory has no room (`instance.in_flight`). Its ops may overlap otherwise, and its W's do not
count, so every schedule satisfies all of this. On modelled ranks the caps follow from the memory
limit; they propagate at once.
"""

from collections.abc import Iterator

from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.in_flight import in_flight_caps
from synth.solver.instance.instance import B, F, Instance, Node, OpIndex


def add_in_flight(ops: OpVariables) -> None:
    """Add the starts and the precedences of all caps of the instance."""
    caps = in_flight_caps(ops.instance)
    passed = {copy for cap in caps for copy in (cap.copy, cap.freed)} - set(ops.copies)
    delays = _Delays(ops, sorted(passed))
    for copy in sorted({*passed, *ops.copies}):
        delays.add(copy)
    for copy, freed, most in caps:
        for k in range(most, ops.instance[copy].num_micro_batches):
            freed_end = delays.end(freed, OpIndex(B, k - most))
            ops.cp.add(delays.start[copy, OpIndex(F, k)] >= freed_end)


class _Delays:
    """Stage copies of omitted ranks between those of a model, with starts of F and B.

    Attributes:
        start: by op, also of the modelled copies.
    """

    def __init__(self, ops: OpVariables, passed: list[int]) -> None:
        self._cp, self._instance, self._passed = ops.cp, ops.instance, set(passed)
        self.start: dict[Node, cp_model.LinearExpr] = dict(ops.start)
        for copy in passed:
            for k in range(ops.instance[copy].num_micro_batches):
                for kind in (F, B):
                    start = ops.cp.new_int_var(0, ops.far_us, f"{kind}{copy}.{k}")
                    self.start[copy, OpIndex(kind, k)] = start
        self._present = {*passed, *ops.copies}

    def end(self, copy: int, op_index: OpIndex) -> "cp_model.LinearExpr":
        """Return the end of an op, at the earliest, if B may be fused."""
        return self.start[copy, op_index] + self._instance[copy].duration_us[op_index.kind]

    def add(self, copy: int) -> None:
        """Let micro-batches pass a copy in order, and come from the copy above and return to it."""
        instance, at = self._instance, self.start
        if copy in self._passed:
            for kind, k in self._own(instance, copy):
                if k > 0:
                    self._cp.add(at[copy, OpIndex(kind, k)] >= self.end(copy, OpIndex(kind, k - 1)))
                if kind == B:
                    ready = self.end(copy, OpIndex(F, k)) + instance.round_trip_us[copy]
                    self._cp.add(at[copy, OpIndex(B, k)] >= ready)
        above = next((c for c in instance.chain_above(copy) if c in self._present), None)
        if above is None or not self._passed & {copy, above}:
            return
        down_us, up_us = instance.way_down_us(above, copy), instance.way_up_us(copy, above)
        for k in range(instance[copy].num_micro_batches):
            f, b = OpIndex(F, k), OpIndex(B, k)
            self._cp.add(at[copy, f] >= self.end(above, f) + down_us)
            self._cp.add(at[above, b] >= self.end(copy, b) + up_us)

    @staticmethod
    def _own(instance: Instance, copy: int) -> Iterator[OpIndex]:
        return (one for one in instance.op_indices(copy) if one.kind in (F, B))
