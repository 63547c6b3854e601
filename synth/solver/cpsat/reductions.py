"""The all-reduces of the exact model, between the copies of a stage.

Those among the same ranks run one at a time, in the order that `schedule.lowering.collectives`
reads off the programs: by the place of a stage's last W or BW in its rank's program, the largest
over the ranks, and then by stage. A place counts a BW as one op. So the model has this order only
where it has BW on all copies; elsewhere the order is free, which is a relaxation.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from synth.solver.cpsat.memory.counts import Counts
from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import SPLIT, OpIndex, W


class _Reduction(NamedTuple):
    """The all-reduce of a stage, and the modelled copies whose gradients it adds up."""

    copies: list[int]
    start: cp_model.IntVar
    end: cp_model.IntVar


def add_reductions(ops: OpVariables) -> dict[int, cp_model.IntVar]:
    """Reduce gradients after the last W of all copies, one at a time per set of ranks.

    Copies outside the model are taken to be ready. Return the end of each stage's reduction.
    """
    reduced: dict[int, cp_model.IntVar] = {}
    orders = _Orders(ops) if ops.fuses_all else None
    for stages in ops.instance.reductions.values():
        turns = {stage: one for stage in stages if (one := _reduction(ops, stage)) is not None}
        ops.cp.add_no_overlap(
            ops.cp.new_interval_var(one.start, ops.instance[one.copies[0]].reduce_us, one.end, "")
            for one in turns.values()
        )
        if orders is not None:
            orders.add(list(turns.values()))
        reduced |= {stage: one.end for stage, one in turns.items()}
    return reduced


def _reduction(ops: OpVariables, stage: int) -> _Reduction | None:
    """Add the variables of a stage's reduction; None: no copy is modelled."""
    copies = [copy for copy in ops.instance.copies_of(stage) if copy in ops.copies]
    if not copies:
        return None
    start = ops.cp.new_int_var(0, ops.far_us, "")
    for copy in copies:
        ops.cp.add(start >= ops.end(copy, OpIndex(W, ops.instance[copy].last)))
    end = ops.cp.new_int_var(0, ops.far_us + ops.instance[copies[0]].reduce_us, "")
    return _Reduction(copies, start, end)


class _Orders:
    """Adds the order of reductions to a model of all ranks with BW on all copies."""

    def __init__(self, ops: OpVariables) -> None:
        self.ops, self.cp = ops, ops.cp
        ends = {node: ops.end(*node) for node in ops.start}
        self._counts = Counts(ops.cp, ops.instance, ops.start, ends)

    def add(self, turns: list[_Reduction]) -> None:
        """Order reductions among the same ranks, given by rising stage."""
        if len(turns) < 2:
            return
        places = [self._latest_place(one) for one in turns]
        for (one, at), (other, other_at) in combinations(zip(turns, places, strict=True), 2):
            is_first = self.cp.new_bool_var("")
            self.cp.add(at <= other_at).only_enforce_if(is_first)
            self.cp.add(at > other_at).only_enforce_if(~is_first)
            self.cp.add(other.start >= one.end).only_enforce_if(is_first)
            self.cp.add(one.start >= other.end).only_enforce_if(~is_first)

    def _latest_place(self, one: _Reduction) -> cp_model.IntVar:
        most = sum(len(SPLIT) * copy.num_micro_batches for copy in self.ops.instance.copies)
        latest = self.cp.new_int_var(0, most, "")
        self.cp.add_max_equality(latest, map(self._place, one.copies))
        return latest

    def _place(self, copy: int) -> cp_model.LinearExprT:
        """Return the number of ops of the rank before the op with the last W of a copy."""
        held = self.ops.instance.held[self.ops.instance[copy].rank]
        fused = self.ops.fusions[copy].fused_w
        # The other ops of the copy come before; a fused W is no op of its own.
        certain = len(SPLIT) * len(fused) - 1
        before = (part for other in held if other != copy for part in self._before(other, copy))
        return cp_model.LinearExpr.sum([*before, *(-1 * literal for literal in fused)]) + certain

    def _before(self, other: int, copy: int) -> Iterator[cp_model.LinearExprT]:
        """Yield what each op of another copy adds to the place of the last W of a copy."""
        last = (copy, OpIndex(W, self.ops.instance[copy].last))
        for op_index in self.ops.instance.op_indices(other):
            literal = self._counts.comes_first((other, op_index), last)
            yield literal
            if op_index.kind == W:
                fused = self.ops.fusions[other].fused_w[op_index.microbatch]
                both = self.cp.new_bool_var("")
                self.cp.add_bool_and([literal, fused]).only_enforce_if(both)
                self.cp.add_bool_or([~literal, ~fused, both])
                yield -1 * both
