"""The memory limit of a rank with several stage copies, by counting the ops done before each op.

A literal says which of two ops of a rank comes first, where that is open; the usage before an op is
a sum of such literals. Their number is quadratic in the ops, but where ops are few, CP-SAT finds
and proves far more with them than with a reservoir.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from synth.op_kinds import OpKind
from synth.solver.cpsat.fusion import Fusion
from synth.solver.cpsat.or_tools import cp_model, cp_model_helper
from synth.solver.instance.instance import BW, B, F, Instance, Node, OpIndex, W


class Counts:
    """Adds the memory limit of ranks to a model.

    Args:
        start: by op.
        end: by op.
        place: by op, its place in a known order, as a hint.
        fusions: by stage copy, where B and W may be fused.
    """

    def __init__(
        self,
        cp: cp_model.CpModel,
        instance: Instance,
        start: Mapping[Node, cp_model.LinearExpr],
        end: Mapping[Node, cp_model.LinearExprT],
        place: Mapping[Node, int] | None = None,
        fusions: Mapping[int, Fusion] | None = None,
    ) -> None:
        self.cp, self.instance, self.start, self.end, self.place = cp, instance, start, end, place
        self.fusions = fusions or {}
        self.before: dict[tuple[Node, Node], cp_model_helper.Literal] = {}

    def add(self, nodes: Iterable[Node], headroom_bytes: int, usage_bytes: int = 0) -> None:
        """Let no op of a rank start where it does not fit.

        Args:
            nodes: ops whose order is open, by rising number within a kind.
            usage_bytes: usage before all of them.
        """
        numbers: dict[tuple[int, OpKind], list[int]] = {}
        for copy, (kind, k) in nodes:
            numbers.setdefault((copy, kind), []).append(k)
        highest = headroom_bytes - usage_bytes
        for (copy, kind), own in numbers.items():
            peaks_above, fusion = self.instance[copy].peak_above_bytes, self.fusions.get(copy)
            for k in own:
                op_index = OpIndex(kind, k)
                alone = None if fusion is None else fusion.separate(op_index)
                limits = [(peaks_above[kind], [] if alone is None else [alone])]
                if fusion is not None and kind == B:
                    limits.append((peaks_above[BW], [fusion.fused_b[k]]))
                # Without a peak above zero it fits wherever the op before it did.
                if all(peak_above <= 0 for peak_above, _ in limits):
                    continue
                usage = self._usage((copy, op_index), numbers)
                for peak_above, conditions in limits:
                    self.cp.add(usage + peak_above <= highest).only_enforce_if(conditions)

    def _usage(
        self, node: Node, numbers: Mapping[tuple[int, OpKind], Sequence[int]]
    ) -> cp_model.LinearExprT:
        """Return the bytes that the other ops have added right before an op."""
        certain_bytes = 0
        open_bytes: list[cp_model.LinearExprT] = []
        for (other, kind), theirs in numbers.items():
            delta = self.instance[other].delta_bytes[kind]
            if not delta:
                continue
            done, at_most = self._undecided(node, other, kind)
            certain_bytes += delta * sum(j < done for j in theirs)
            undecided = [(other, OpIndex(kind, j)) for j in theirs if done <= j < at_most]
            literals = [self.comes_first(one, node) for one in undecided]
            # In order, so the later implies the sooner.
            for sooner, later in pairwise(literals):
                self.cp.add_implication(later, sooner)
            open_bytes += [delta * literal for literal in literals]
        return cp_model.LinearExpr.sum(open_bytes) + certain_bytes

    def _undecided(self, node: Node, other: int, kind: OpKind) -> tuple[int, int]:
        """Return how many ops of another type are done before an op in any case, and at most."""
        instance, (copy, (own, k)) = self.instance, node
        count = instance[other].num_micro_batches
        if (copy, own) == (other, kind):
            return k, k
        if instance[copy].replica != instance[other].replica:
            return 0, count
        if _leads(other, kind, copy, own):
            return min(count, k + 1), count
        if _leads(copy, own, other, kind):
            return 0, min(count, k)
        return 0, count

    def comes_first(self, first: Node, second: Node) -> cp_model_helper.Literal:
        """Return the literal that one op of a rank comes before another, made at its first use."""
        if (second, first) in self.before:
            return self.before[second, first].negated()
        if (first, second) not in self.before:
            literal = self.cp.new_bool_var("")
            if self.place is not None:
                self.cp.add_hint(literal, self.place[first] < self.place[second])
            for ends, holds in (((first, second), literal), ((second, first), literal.negated())):
                sooner, later = ends
                after = self.start[later] >= self.end[sooner]
                self.cp.add(after).only_enforce_if(holds)
            self.before[first, second] = literal
        return self.before[first, second]


def _leads(copy: int, kind: OpKind, other: int, other_kind: OpKind) -> bool:
    """Return True if a micro-batch passes one type of op of a replica before the other one.

    First come all F's, downwards, then all B's, upwards; each W follows its B, and nothing waits
    for it.
    """
    if kind == W:
        return False
    if kind == F:
        return other_kind != F or copy < other
    return other_kind != F and copy >= other
