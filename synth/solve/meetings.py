"""Ops that meet on ranks that are not modelled: there, too, one of the two comes first.

    rank 0 | F1 .. .. .. .. B0 |     F1 goes down and B0 comes up, so on some rank they meet. If
    rank 1 |    F1 .. .. B0    |     neither is to wait there, they must be just in time for each
    rank 2 |       B0 F1       |     other: so the forwards of a full pipeline keep step, and leave
    rank 3 |    B0 .. .. F1    |     little room for W's, also on the ranks modelled (0 and 3).

An op on another rank has a window between the modelled ops that it comes from and leads to. If F i
is before B j there, then what B j leads to starts no sooner after what F i comes from than the ways
of both and their own times take; or B j is before F i. So each pair is a choice between distances
of modelled ops. W's and the memory of other ranks do not count.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from synth.kinds import OpKind
from synth.solve.view import B, F, Node, Slot, View

# With more choices a model takes long to build and to presolve: then only some of the ranks count.
_MOST_CHOICES = 60_000


class _Distance(NamedTuple):
    """The least time from the start of an op to that of another, of two micro-batches."""

    first: tuple[int, OpKind]
    second: tuple[int, OpKind]
    least_us: int

    def between(
        self, start: Mapping[Node, cp_model.LinearExpr], i: int, j: int
    ) -> tuple[cp_model.LinearExpr, cp_model.LinearExpr]:
        """When the second op can start at the earliest, and when it does."""
        (first, kind), (second, later_kind) = self.first, self.second
        return start[first, Slot(kind, i)] + self.least_us, start[second, Slot(later_kind, j)]


class _Choice(NamedTuple):
    """What is kept if F of a micro-batch, or B of one before it, is first on some rank."""

    forward_first: _Distance
    backward_first: _Distance


def add_meetings(
    cp: cp_model.CpModel,
    view: View,
    chunks: Sequence[int],
    start: Mapping[Node, cp_model.LinearExpr],
) -> None:
    """Add the choice of every F and B that may meet, on ranks that hold one stage; see above.

    Where ranks hold several stages, it is their W's and memory that matter. B of a micro-batch that
    is not before F's own meets it nowhere, nor does one that memory asks to be done before.

    Args:
        chunks: those that are modelled.
        start: of each of their ops.
    """
    modelled, most = set(chunks), view.room_in_forwards(0)
    passed = [c for c in range(len(view)) if c not in modelled and view.is_alone(c)]
    num_choices = sum(len(_pairs(view[c].num_micro_batches, most)) for c in passed)
    for index in passed[:: 1 + num_choices // _MOST_CHOICES]:
        choice = _choice(view, index, modelled)
        if choice is not None:
            for i, j in _pairs(view[index].num_micro_batches, most):
                literal = cp.new_bool_var("")
                first, second = choice.forward_first.between(start, i, j)
                cp.add(second >= first).only_enforce_if(literal)
                first, second = choice.backward_first.between(start, j, i)
                cp.add(second >= first).only_enforce_if(~literal)


def _pairs(count: int, most: int | None) -> list[tuple[int, int]]:
    """Micro-batches whose F and B may meet: no more are under way than memory takes."""
    return [(i, j) for i in range(count) for j in range(max(0, i + 1 - (most or count)), i)]


def _choice(view: View, index: int, modelled: set[int]) -> _Choice | None:
    """Of a chunk that is not modelled; none if no chunk above it is.

    Where none below it is, B comes from the chunk above too, by way of its F.
    """
    above = next((chunk for chunk in view.chain_above(index) if chunk in modelled), None)
    if above is None:
        return None
    both_us = view[index].duration_us[F] + view[index].duration_us[B]
    down_us = view[above].duration_us[F] + view.way_down_us(above, index)
    up_us = view.way_up_us(index, above)
    forward_first = _Distance((above, F), (above, B), down_us + both_us + up_us)
    below = view[index].below
    while below is not None and below not in modelled:
        below = view[below].below
    if below is None:
        trips_us = 2 * (both_us + view.round_trip_us[index])
        backward_first = _Distance((above, F), (above, B), down_us + trips_us + up_us)
    else:
        ways_us = view.way_up_us(below, index) + view.way_down_us(index, below)
        under_us = view[below].duration_us[B] + ways_us + both_us
        backward_first = _Distance((below, B), (below, F), under_us)
    return _Choice(forward_first, backward_first)
