"""The cut on which ranks are busy for the shortest time, with work or with full memory.

A micro-batch's saved activations live at least for the way from a stage's F to the end of the model
and back. By Little's law a rank whose memory has room for a bytes takes at least

    number of micro-batches · (bytes · lifetime) / a

however it orders its ops. With slow links, lifetimes are long and memory rather than work is what
stages should share equally: the first ones get fewer layers.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.plan.partition.boundary_moves import BoundaryMoves
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import LIFETIME_CUT
from synth.schedule.model import Placement

_Array = npt.NDArray[Any]


class LifetimeCuts:
    """The times for which work or memory keeps each rank, for many cuts at once.

    One micro-batch is counted, on its shortest way. What ops need beside saved activations is left
    out.
    """

    def __init__(self, table: StageCostTable, placement: Placement, caps_bytes: Sequence[int]):
        self.table, self.caps_bytes = table, np.array(caps_bytes, np.float64)
        self.moves = BoundaryMoves(placement.num_stages)
        held = np.zeros((placement.num_ranks, placement.num_stages))
        (ranks,) = placement.ranks
        held[ranks, range(placement.num_stages)] = 1
        self.held = held
        self.transfers_us = self._transfers(ranks)

    @classmethod
    def of(
        cls, table: StageCostTable, placement: Placement, caps_bytes: Sequence[int] | None
    ) -> Self | None:
        """Return None if there are no limits or several copies of the stages."""
        if caps_bytes is None or len(placement.ranks) > 1 or placement.backward_ranks is not None:
            return None
        return cls(table, placement, caps_bytes)

    def _transfers(self, ranks: Sequence[int]) -> _Array:
        """Return for each boundary and layer before it the time of both ways over the boundary."""
        table = self.table
        layers = [table.profile.layer_profile(index) for index in range(table.num_layers)]
        links = table.profile.links
        both = np.zeros((len(ranks) - 1, len(layers)))
        for stage, (source, target) in enumerate(pairwise(ranks)):
            if source == target:
                continue
            there, back = links.between(source, target), links.between(target, source)
            for index, layer in enumerate(layers):
                both[stage, index] = there.transfer_us(layer.output_bytes)
                both[stage, index] += back.transfer_us(layer.returned_bytes)
        return both

    def best(
        self, starts: Sequence[Sequence[int]], should_stop: Callable[[], bool]
    ) -> tuple[int, ...]:
        """Return the best cut that moves of boundaries reach from the best of some cuts."""
        edges = np.array([np.concatenate(([0], np.cumsum(one))) for one in starts])
        scores = self._scores(edges)
        first = sorted(range(len(edges)), key=scores.__getitem__)
        count = max(1, LIFETIME_CUT.moves_at_once // max(1, len(self.moves)))
        found = [self._descend(edges[place], should_stop) for place in first[:count]]
        _, best = min(found, key=lambda pair: pair[0])
        return tuple(np.diff(best).tolist())

    def _descend(
        self, edges: IntArray, should_stop: Callable[[], bool]
    ) -> tuple[tuple[float, float], IntArray]:
        score = self._scores(edges[None, :])[0]
        while len(possible := self.moves.possible(edges)) and not should_stop():
            moved = self.moves.all_moved(edges, possible)
            scores = self._scores(moved)
            best = min(range(len(scores)), key=scores.__getitem__)
            if scores[best] >= score:
                break
            score, edges = scores[best], moved[best]
        return score, edges

    def _scores(self, edges: IntArray) -> list[tuple[float, float]]:
        """Return for each row of edges the longest time of a rank and the sum of squares."""
        times = self.times_us(edges)
        squares = (times**2).sum(axis=1)
        return list(zip(times.max(axis=1).tolist(), squares.tolist(), strict=True))

    def times_us(self, edges: IntArray) -> _Array:
        """Return for each row of edges and each rank the time that one micro-batch keeps it."""
        table = self.table
        way_up_to = table.times_up_to[OpKind.F] + table.times_up_to[OpKind.B]
        way, work, saved, static = (
            np.diff(up_to[edges], axis=1)
            for up_to in (way_up_to, table.work_up_to, table.saved_up_to, table.static_up_to)
        )
        way[:, :-1] += self.transfers_us[np.arange(edges.shape[1] - 2), edges[:, 1:-1] - 1]
        lifetimes = way[:, ::-1].cumsum(axis=1)[:, ::-1]
        room = self.caps_bytes - static @ self.held.T
        by_memory = (saved * lifetimes) @ self.held.T / np.maximum(room, 1)
        by_memory = np.where(room > 0, by_memory, LIFETIME_CUT.no_room_us - room)
        busy: _Array = np.maximum(work @ self.held.T, by_memory)
        return busy
