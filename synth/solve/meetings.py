"""Ops that meet on ranks that are not modelled: one of the two comes first there too.

    rank 0 | F1 .. .. .. .. B0 |     F1 goes down and B0 comes up, so on some rank between they
    rank 1 |    F1 .. .. B0    |     meet. There one waits for the other, or they are just in time
    rank 2 |       B0 F1       |     for each other: which costs time or leaves the ranks that are
    rank 3 |    B0 .. .. F1    |     modelled, 0 and 3, less freedom, whatever is between.

Between the modelled ranks that it comes from and goes to, an op on another rank has a window. If P
is before Q there, then what Q leads to starts no sooner after what P comes from than the way of
both takes; or Q is before P. So every pair is a choice between two distances of modelled ops.
Without W's and memory, of ranks that are not modelled this is all that a schedule must keep.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from ortools.sat.python import cp_model

from synth.kinds import OpKind
from synth.solve.view import B, F, Node, Slot, View


class _End(NamedTuple):
    """A modelled op of the same micro-batch, and the least time between it and one that is not."""

    chunk: int
    kind: OpKind
    way_us: int


class _Passing(NamedTuple):
    """An op of every micro-batch on a rank that is not modelled.

    It starts `came.way_us` or more after the start of `came`, and ends `goes.way_us` or more before
    the start of `goes`.
    """

    duration_us: int
    came: _End | None
    goes: _End | None


def add_meetings(
    cp: cp_model.CpModel,
    view: View,
    chunks: Sequence[int],
    start: Mapping[Node, cp_model.LinearExpr],
) -> None:
    """Add the choice of every two ops that may meet, on every rank none of whose chunks is modelled.

    Args:
        chunks: those that are modelled.
        start: of each of their ops.
    """
    modelled = set(chunks)
    for rank in range(view.num_ranks):
        if modelled.isdisjoint(view.held[rank]):
            for chain in view.chains(rank):
                ops = list(_passings(view, chain, modelled))
                for earlier, later in combinations(ops, 2):
                    _add_choices(cp, view, start, earlier, later, view[chain[0]].num_micro_batches)


def _passings(view: View, chain: tuple[int, ...], modelled: set[int]) -> Iterator[_Passing]:
    """F's and B's of a rank's chunks in the order in which a micro-batch passes them."""
    for index in chain:
        yield _passing_down(view, index, modelled)
    for index in reversed(chain):
        yield _passing_up(view, index, modelled)


def _passing_down(view: View, index: int, modelled: set[int]) -> _Passing:
    """F: it comes from above and goes below, or if nothing is modelled there, comes up again."""
    above, below = _above(view, index, modelled), _below(view, index, modelled)
    came = goes = None
    if above is not None:
        came = _End(above, F, _time_us(view, above, F) + view.way_down_us(above, index))
    if below is not None:
        goes = _End(below, F, view.way_down_us(index, below))
    elif above is not None:
        back_us = view.round_trip_us[index] + _time_us(view, index, B)
        goes = _End(above, B, back_us + view.way_up_us(index, above))
    return _Passing(_time_us(view, index, F), came, goes)


def _passing_up(view: View, index: int, modelled: set[int]) -> _Passing:
    """B: it comes from below, or if nothing is modelled there, from above by way of its F."""
    above, below = _above(view, index, modelled), _below(view, index, modelled)
    came = goes = None
    if above is not None:
        goes = _End(above, B, view.way_up_us(index, above))
    if below is not None:
        came = _End(below, B, _time_us(view, below, B) + view.way_up_us(below, index))
    elif above is not None:
        down_us = _time_us(view, above, F) + view.way_down_us(above, index)
        came = _End(above, F, down_us + _time_us(view, index, F) + view.round_trip_us[index])
    return _Passing(_time_us(view, index, B), came, goes)


def _above(view: View, index: int, modelled: set[int]) -> int | None:
    return next((chunk for chunk in view.chain_above(index) if chunk in modelled), None)


def _below(view: View, index: int, modelled: set[int]) -> int | None:
    below = view[index].below
    while below is not None and below not in modelled:
        below = view[below].below
    return below


def _time_us(view: View, index: int, kind: OpKind) -> int:
    return view[index].duration_us[kind]


def _add_choices(
    cp: cp_model.CpModel,
    view: View,
    start: Mapping[Node, cp_model.LinearExpr],
    earlier: _Passing,
    later: _Passing,
    num_micro_batches: int,
) -> None:
    """The earlier op of a micro-batch, and the later one of each that is before it in the pipeline.

    Of those that are after it, it is first: it is earlier even of the same micro-batch.
    """
    first, second = (earlier.came, later.goes), (later.came, earlier.goes)
    if None in (*first, *second):
        return
    work_us = earlier.duration_us + later.duration_us
    in_flight = view.room_in_forwards(0) or num_micro_batches
    for i in range(num_micro_batches):
        for j in range(max(0, i - in_flight + 1), i):
            is_first = cp.new_bool_var("")
            _keep_apart(cp, start, first, (i, j), work_us).only_enforce_if(is_first)
            _keep_apart(cp, start, second, (j, i), work_us).only_enforce_if(~is_first)


def _keep_apart(cp, start, ends, micro_batches, work_us):
    (came, goes), (first, second) = ends, micro_batches
    began = start[came.chunk, Slot(came.kind, first)] + came.way_us + work_us
    return cp.add(start[goes.chunk, Slot(goes.kind, second)] >= began + goes.way_us)
