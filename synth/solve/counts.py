"""The memory cap of a rank that holds several stages, as counts of what is done before each op.

Which of two ops of a rank comes first is a literal where their order is not certain anyway; the
level before an op is a sum of such literals. Their number is quadratic in the ops of the rank, and
where these are few the proofs are far quicker than with a reservoir.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

from ortools.sat.python import cp_model
from ortools.sat.python.cp_model_helper import Literal

from synth.kinds import OpKind
from synth.solve.view import SPLIT, F, Slot, View, W

Node = tuple[int, Slot]


def add_counts(
    cp: cp_model.CpModel,
    view: View,
    rank: int,
    room_bytes: int,
    start: Mapping[Node, cp_model.LinearExpr],
    end: Callable[[int, Slot], cp_model.LinearExprT],
) -> None:
    """Let no op of a rank start where it does not fit.

    Args:
        start: of each op.
        end: of an op of a chunk.
    """
    _Counts(cp, view, rank, start, end).add(room_bytes)


class _Counts:
    def __init__(
        self,
        cp: cp_model.CpModel,
        view: View,
        rank: int,
        start: Mapping[Node, cp_model.LinearExpr],
        end: Callable[[int, Slot], cp_model.LinearExprT],
    ) -> None:
        self.cp, self.view, self.start, self.end = cp, view, start, end
        self.types = [(chunk, kind) for chunk in view.held[rank] for kind in SPLIT]
        self.before: dict[tuple[Node, Node], Literal] = {}

    def add(self, room_bytes: int) -> None:
        """Level and need of every op within the room."""
        for chunk, kind in self.types:
            need = self.view[chunk].need_bytes[kind]
            if need <= 0:  # it fits wherever the op before it did
                continue
            for k in range(self.view[chunk].num_micro_batches):
                self.cp.add(self._level(chunk, Slot(kind, k)) + need <= room_bytes)

    def _level(self, chunk: int, slot: Slot) -> cp_model.LinearExprT:
        """The bytes right before an op."""
        certain_bytes = 0
        open_bytes: list[cp_model.LinearExprT] = []
        for other, kind in self.types:
            effect = self.view[other].effect_bytes[kind]
            first, last = self._undecided((chunk, slot), other, kind)
            certain_bytes += effect * first
            if effect:
                literals = self._literals((chunk, slot), other, kind, range(first, last))
                open_bytes += [effect * literal for literal in literals]
        return cp_model.LinearExpr.sum(open_bytes) + certain_bytes

    def _undecided(self, node: Node, other: int, kind: OpKind) -> tuple[int, int]:
        """Of another type, how many are done before an op for certain, and how many at most."""
        view, (chunk, (own, k)) = self.view, node
        count = view[other].num_micro_batches
        if (chunk, own) == (other, kind):
            return k, k
        if view[chunk].replica != view[other].replica:
            return 0, count
        if self._leads(other, kind, chunk, own):
            return min(count, k + 1), count
        if self._leads(chunk, own, other, kind):
            return 0, min(count, k)
        return 0, count

    def _leads(self, chunk: int, kind: OpKind, other: int, other_kind: OpKind) -> bool:
        """Whether a micro-batch passes one type of op before the other: down, up, and W behind B.

        Nothing waits for a W.
        """
        if kind == W:
            return False
        if kind == F:
            return other_kind != F or chunk < other
        return other_kind != F and chunk >= other

    def _literals(self, node: Node, other: int, kind: OpKind, numbers: range) -> list[Literal]:
        """For each of a run of ops whether it is done before this one; in order, so they fall."""
        literals = [self._is_before((other, Slot(kind, j)), node) for j in numbers]
        for sooner, later in pairwise(literals):
            self.cp.add_implication(later, sooner)
        return literals

    def _is_before(self, first: Node, second: Node) -> Literal:
        if (second, first) in self.before:
            return self.before[second, first].negated()
        if (first, second) not in self.before:
            literal = self.cp.new_bool_var("")
            for ends, holds in (((first, second), literal), ((second, first), literal.negated())):
                sooner, later = ends
                after = self.start[later] >= self.end(*sooner)
                self.cp.add(after).only_enforce_if(holds)
            self.before[first, second] = literal
        return self.before[first, second]
