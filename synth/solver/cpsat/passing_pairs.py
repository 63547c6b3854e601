"""Passing pairs: an F and a B that cross on a rank that is not modelled cannot run there at once.

    rank 0 | F1 .. .. .. .. B0 |     F1 goes down and B0 comes up, so on some rank they meet. If
    rank 1 |    F1 .. .. B0    |     neither is to wait there, they must be just in time for each
    rank 2 |       B0 F1       |     other: so the forwards of a full pipeline keep step, and leave
    rank 3 |    B0 .. .. F1    |     little room for W's, also on the ranks modelled (0 and 3).

An op on an omitted rank lies between the modelled op that it comes from and the one that it leads
to. If F i is before B j there, the op that B j leads to starts no sooner after the op that F i
comes from than both ways and their own durations take; or else B j is before F i. So each pair is a
disjunction of distances between modelled ops. W's and the memory of omitted ranks do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import B, F, Instance, Node, OpIndex
from synth.solver.tuning import EXACT_MODEL


class _Distance(NamedTuple):
    """The least time from the start of one op to the start of another, of two micro-batches."""

    first: tuple[int, OpKind]
    second: tuple[int, OpKind]
    least_us: int

    def keep(
        self, cp: cp_model.CpModel, start: Mapping[Node, cp_model.LinearExpr], i: int, j: int
    ) -> cp_model.Constraint:
        """Add the distance from the first op of micro-batch i to the second one of j."""
        (first, kind), (second, later_kind) = self.first, self.second
        began = start[first, OpIndex(kind, i)]
        return cp.add(start[second, OpIndex(later_kind, j)] >= began + self.least_us)


class _Choice(NamedTuple):
    """The distances if F of a micro-batch, or B of an earlier one, is first on some rank."""

    forward_first: _Distance
    backward_first: _Distance


def add_passing_pairs(
    cp: cp_model.CpModel,
    instance: Instance,
    copies: Sequence[int],
    start: Mapping[Node, cp_model.LinearExpr],
) -> None:
    """Add a disjunction for every passing pair on omitted ranks that hold one stage copy.

    Where ranks hold several, their W's and memory matter more. B of a micro-batch that is not
    before F's own never passes it, nor does one that memory requires to be done before.
    """
    modelled = set(copies)
    passed = [c for c in range(len(instance)) if c not in modelled and instance.is_alone(c)]
    choices = [
        (c, choice) for c in passed if (choice := _choice(instance, c, modelled)) is not None
    ]
    num_choices = sum(_num_pairs(instance, c) for c, _ in choices)
    for index, choice in choices[:: 1 + num_choices // EXACT_MODEL.most_passing_pairs]:
        for i, j in islice(_pairs(instance, index), EXACT_MODEL.most_passing_pairs):
            literal = cp.new_bool_var("")
            choice.forward_first.keep(cp, start, i, j).only_enforce_if(literal)
            choice.backward_first.keep(cp, start, j, i).only_enforce_if(~literal)


def _pairs(instance: Instance, index: int) -> Iterator[tuple[int, int]]:
    """Yield the micro-batches whose F and B may pass each other on a copy."""
    most = _most_under_way(instance, index)
    for i in range(instance[index].num_micro_batches):
        for j in range(max(0, i + 1 - most), i):
            yield i, j


def _num_pairs(instance: Instance, index: int) -> int:
    """Return the number of pairs."""
    count, most = instance[index].num_micro_batches, _most_under_way(instance, index)
    return (most - 1) * (2 * count - most) // 2


def _most_under_way(instance: Instance, index: int) -> int:
    """Return the most micro-batches in flight there, limited by the memory of ranks above too."""
    headrooms = (instance.headroom_in_forwards(c) for c in (index, *instance.chain_above(index)))
    return min(
        [
            instance[index].num_micro_batches,
            *(headroom for headroom in headrooms if headroom is not None),
        ]
    )


def _choice(instance: Instance, index: int, modelled: set[int]) -> _Choice | None:
    """Return the disjunction of an omitted copy; None if no copy above it is modelled.

    Where none below it is, B comes from the copy above too, by way of its F.
    """
    above = next((copy for copy in instance.chain_above(index) if copy in modelled), None)
    if above is None:
        return None
    both_us = instance[index].duration_us[F] + instance[index].duration_us[B]
    down_us = instance[above].duration_us[F] + instance.way_down_us(above, index)
    up_us = instance.way_up_us(index, above)
    forward_first = _Distance((above, F), (above, B), down_us + both_us + up_us)
    below = instance[index].below
    while below is not None and below not in modelled:
        below = instance[below].below
    if below is None:
        trips_us = 2 * (both_us + instance.round_trip_us[index])
        backward_first = _Distance((above, F), (above, B), down_us + trips_us + up_us)
    else:
        ways_us = instance.way_up_us(below, index) + instance.way_down_us(index, below)
        under_us = instance[below].duration_us[B] + ways_us + both_us
        backward_first = _Distance((below, B), (below, F), under_us)
    return _Choice(forward_first, backward_first)
