"""Neighbours of a cut: a layer moved to another stage, the most promising ones first."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.op_kinds import OpKind
from synth.plan.partition.boundary_moves import BoundaryMoves
from synth.plan.partition.layer_run_work import RunWorks
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.published.critical_counts import COUNTED
from synth.plan.published.variants import Sizes
from synth.schedule.model import Placement, Schedule

_Array = npt.NDArray[Any]


class Room(NamedTuple):
    """The memory of a cut by rank: bytes above the limit, or below 0 the room under it.

    `in_flight` counts by rank and stage the micro-batches whose activations are held at once.
    """

    excess_bytes: Sequence[int]
    in_flight: _Array


class Guide(NamedTuple):
    """A schedule's say on the neighbours of its cut: its critical ops, and its memory.

    `critical` counts them by kind and stage (see `critical_counts`); `room` is None without limits.
    """

    critical: _Array
    room: Room | None = None


class Neighbours:
    """The neighbours of cuts for a placement."""

    def __init__(
        self, table: StageCostTable, where: Placement, speeds: Sequence[float] | None = None
    ) -> None:
        """Prepare the sums.

        Args:
            speeds: of each stage's rank; None: all are equal.
        """
        self._speeds = np.ones(where.num_stages) if speeds is None else np.array(speeds)
        self._moves, self._works = BoundaryMoves(where.num_stages), RunWorks(table)
        self._table = table
        self._held = np.zeros((where.num_ranks, where.num_stages), np.int64)
        for rank, held in enumerate(where.held):
            for stage, _ in held:
                self._held[rank, stage] += 1

    def of(self, sizes: Sizes, guide: Guide) -> Iterator[Sizes]:
        """Yield the neighbours: those that seem to exceed limits least first, then by time.

        The time is estimated by the length of the critical path, then by how even ranks are.
        """
        edges = np.array(list(accumulate(sizes, initial=0)), np.int64)
        moves = self._moves.possible(edges)
        if not len(moves):
            return
        moved = self._moves.all_moved(edges, moves)
        stages = self._works.of(moved[:, :-1], moved[:, 1:]) / self._speeds
        ranks = stages @ self._held.T
        keys = [(ranks**2).sum(axis=1), self._critical_us(moved, guide)]
        room = guide.room
        if room is not None:
            changed = self._bytes(moved, room) - self._bytes(edges[None, :], room)
            excess = (np.array(room.excess_bytes) + changed).max(axis=1)
            keys.append(np.maximum(excess, 0))
        for at in np.lexsort(keys):
            yield tuple(np.diff(moved[at]).tolist())

    def _critical_us(self, edges: _Array, guide: Guide) -> _Array:
        """Return by row of edges the time of the critical ops, to the µs."""
        first, end, us = edges[:, :-1], edges[:, 1:], np.zeros(len(edges))
        for kind, counts in zip(COUNTED, guide.critical, strict=True):
            up_to = self._table.times_up_to[kind]
            us += (up_to[end] - up_to[first]) @ (counts / self._speeds)
        rounded: _Array = np.rint(us)
        return rounded

    def _bytes(self, edges: _Array, room: Room) -> _Array:
        """Return by row of edges and rank about what is held at most."""
        first, end = edges[:, :-1], edges[:, 1:]
        static, saved = self._table.static_up_to, self._table.saved_up_to
        held: _Array = (static[end] - static[first]) @ self._held.T
        held += (saved[end] - saved[first]) @ room.in_flight.T
        return held


def in_flight(schedule: Schedule) -> _Array:
    """Count by rank and stage the micro-batches in flight when most are, of all stages together."""
    most = np.zeros((schedule.num_ranks, schedule.placement.num_stages), np.int64)
    for rank, program in enumerate(schedule.programs):
        now = [0] * schedule.placement.num_stages
        held, peak = 0, 0
        for op in program:
            change = (op.kind == OpKind.F) - (op.kind in (OpKind.B, OpKind.BW))
            now[op.stage] += change
            held += change
            if held > peak:
                peak, most[rank] = held, now
    return most
