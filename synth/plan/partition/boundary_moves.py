"""Moves of stage boundaries, and the changes of values by all of them at once.

A move shifts one boundary, or several neighbouring ones together, by a layer. The stage on one side
gets a layer more, the stage on the other side one less, and those between slide along. So a change
is a sum of three parts: the stage whose end moves, the stages that slide, and the stage whose start
moves.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from synth.costs.costs import IntArray

_Column = npt.NDArray[Any]

# The value of each stage, from the edges where stages begin and where they end.
OfStages = Callable[[IntArray, IntArray], _Column]


class BoundaryMoves:
    """Every run of inner edges, a layer to the right and to the left."""

    def __init__(self, num_stages: int) -> None:
        first, last = np.triu_indices(num_stages - 1)
        # To the right and to the left in turn.
        self.first, self.last = np.repeat(first + 1, 2), np.repeat(last + 1, 2)
        self.step = np.tile(np.array([1, -1]), len(first))

    def __len__(self) -> int:
        return len(self.step)

    def possible(self, edges: IntArray) -> IntArray:
        """The moves that leave every stage a layer, by number."""
        sizes = np.diff(edges)
        shrinks = np.where(self.step > 0, self.last, self.first - 1)
        found: IntArray = (sizes[shrinks] > 1).nonzero()[0]
        return found

    def moved(self, edges: IntArray, move: int) -> IntArray:
        """The edges after a move."""
        after = edges.copy()
        after[self.first[move] : self.last[move] + 1] += self.step[move]
        return after

    def all_moved(self, edges: IntArray, moves: IntArray) -> IntArray:
        """Compute the edges after each of some moves, a row for each."""
        place, (first, last) = np.arange(len(edges)), (self.first[moves], self.last[moves])
        shifted = (first[:, None] <= place) & (place <= last[:, None])
        after: IntArray = edges + shifted * self.step[moves][:, None]
        return after

    def changes(self, edges: IntArray, moves: IntArray, of: OfStages, shares: IntArray) -> _Column:
        """Compute the change of each rank's value by each move, a row for each move.

        Args:
            edges: the first layer of each stage, and the number of layers.
            moves: the moves to apply.
            of: the value of each stage.
            shares: for each rank, by stage, how often it counts.
        """
        begin, end = edges[:-1], edges[1:]
        now = of(begin, end)
        parts = [self._parts(edges, step, now, of, shares) for step in (1, -1)]
        ends, slid, begins = map(np.stack, zip(*parts, strict=True))
        way = (self.step[moves] < 0).astype(np.int64)
        first, last = self.first[moves], self.last[moves]
        changes: _Column = slid[way, last]
        changes -= slid[way, first]
        changes += ends[way, first - 1]
        changes += begins[way, last]
        return changes

    def _parts(
        self, edges: IntArray, step: int, now: _Column, of: OfStages, shares: IntArray
    ) -> tuple[_Column, _Column, _Column]:
        """Changes by each stage on each rank: its end moved, slid (summed up), its start moved.

        No move asks for edges beyond the first and the last layer, so any value does there.
        """
        begin, end = edges[:-1], edges[1:]
        before, behind = np.maximum(begin + step, 0), np.minimum(end + step, edges[-1])
        asked = ((begin, behind), (before, behind), (before, end))
        ends, slides, begins = ((of(*pair) - now)[:, None] * shares.T for pair in asked)
        slid = np.concatenate((np.zeros_like(slides[:1]), np.cumsum(slides, axis=0)))
        return ends, slid, begins
