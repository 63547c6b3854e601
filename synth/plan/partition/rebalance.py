"""Partitions for ranks that hold several stages: local search over where stages begin.

A move shifts one boundary, or several neighbouring ones together, by a layer: one stage gets a
layer more, another one less, and those between slide along. All moves are scored at once, by work
exactly and by memory from an estimate that is corrected where the search stands; a move is taken
only if the exact score says that it is better. Random kicks, seeded, lead out of local optima.

The least largest work of a rank often belongs to uneven stages, by less than times are known to:
32 equal layers as 3 × 8, 1 × 8 or as 2 × 16 on a V, which fills the pipeline sooner. So a second
descent takes the most even stages of those that leave the busiest rank nearly as little work.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.plan.partition.boundary_moves import BoundaryMoves
from synth.plan.partition.candidates import equal_cuts, nearest_cut
from synth.plan.partition.layer_run_work import RunWorks
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import SEVERAL_STAGES
from synth.schedule.model import Placement
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem

_Array = npt.NDArray[np.int64]
_Column = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class _Score(NamedTuple):
    """Score, smaller is better: bytes above the limits, largest of a rank and sum; then work.

    `above_us` is the largest work of a rank, as far as it counts. Then come the sums of squares:
    of ranks and of stages, or of stages and of ranks.
    """

    worst_excess: int
    total_excess: int
    above_us: int
    squares: float
    further_squares: float


class _State(NamedTuple):
    """A partition by the edges of its stages, its exact score, and each rank's least memory."""

    edges: _Array
    score: _Score
    need_bytes: _Array


def rebalance(
    table: StageCostTable,
    placement: Placement,
    caps_bytes: Sequence[int] | None = None,
    num_micro_batches: int | None = None,
    recompute: Collection[int] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[int, ...]:
    """Choose the layers of each stage so that the busiest rank has little work.

    Memory beyond the limits is minimized first, then the largest work of a rank. Within a
    tolerance of that, which is less than the noise of measured times, stages are as even as
    possible, and then ranks. The search is a heuristic, and deterministic.

    Args:
        caps_bytes: one for each rank; none: memory does not matter.
        num_micro_batches: shared by the replicas; None: each gets the same number.
        recompute: stages whose work includes R.
        should_stop: ends the search with the best so far.
    """
    search = _Search(table, placement, caps_bytes, num_micro_batches, recompute)
    search.should_stop = should_stop
    return search.most_even(search.least_largest(), SEVERAL_STAGES.noise_share)


def compromises(
    table: StageCostTable,
    placement: Placement,
    caps_bytes: Sequence[int] | None = None,
    num_micro_batches: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[tuple[int, ...]]:
    """Return the partition of `rebalance`, then others between even ranks and even stages.

    Each has the most even stages of those that leave the busiest rank at most some share more work
    than it must have. The arguments are those of `rebalance`.
    """
    search = _Search(table, placement, caps_bytes, num_micro_batches, ())
    search.should_stop = should_stop
    even = search.least_largest()
    shares = (SEVERAL_STAGES.noise_share, *SEVERAL_STAGES.compromise_shares)
    found = (search.most_even(even, share) for share in shares)
    return list(dict.fromkeys(found))


class _Search:
    """Local search over partitions, with tables of the works and bytes of runs of layers."""

    def __init__(
        self,
        table: StageCostTable,
        placement: Placement,
        caps_bytes: Sequence[int] | None,
        num_micro_batches: int | None,
        recompute: Collection[int],
    ) -> None:
        self.table, self.placement = table, placement
        self.num_micro_batches = num_micro_batches or len(placement.ranks)
        self.caps = None if caps_bytes is None else np.array(caps_bytes, np.int64)
        self.weights = self._weights()
        self.works = RunWorks(table)
        stages = range(placement.num_stages)
        self.with_r = np.array([stage in recompute for stage in stages])
        self.bytes = self._bytes()
        self.held = np.minimum(self._copies(), 1)
        self.ample_bytes, self.margin_bytes = self._ample()
        self.moves = BoundaryMoves(placement.num_stages)
        self.needs: dict[bytes, _Array] = {}
        # The largest work of a rank up to which stages count first; None: ranks do.
        self.allowed_us: int | None = None
        self.should_stop: Callable[[], bool] = lambda: False

    def most_even(self, even: _State, share: float) -> tuple[int, ...]:
        """Return the layers of the most even stages that leave ranks about as even.

        Args:
            even: the partition of the most even ranks.
            share: by which the largest work of a rank may be above the one there.
        """
        largest_us = int(self._rank_works(even.edges).max())
        self.allowed_us = largest_us + int(share * largest_us)
        starts = [even.edges, self._even_start(), *self._equal_starts()]
        passed: set[bytes] = set()
        ends = [self._descend(self._state(start), passed) for start in starts]
        best = min((end for end in ends if end is not None), key=lambda state: state.score)
        return tuple(int(size) for size in np.diff(best.edges))

    def least_largest(self) -> _State:
        """Return the partition found with the least largest work of a rank."""
        rng = np.random.default_rng(0)
        passed: set[bytes] = set()
        best = self._descend(self._state(self._even_start()), passed)
        assert best is not None
        in_vain = 0
        for _ in range(SEVERAL_STAGES.kicks):
            is_vain = in_vain == SEVERAL_STAGES.kicks_in_vain
            if is_vain or self._is_perfect(best) or self._is_tired():
                break
            found = self._descend(self._state(self._kicked(best.edges, rng)), passed)
            is_better = found is not None and found.score < best.score
            in_vain = 0 if is_better else in_vain + 1
            best = found if found is not None and is_better else best
        return best

    def _is_tired(self) -> bool:
        most = SEVERAL_STAGES.memory_evaluations
        return self.should_stop() or (self.caps is not None and len(self.needs) > most)

    # Tables

    def _copies(self) -> _Array:
        """Count for each rank how often it holds each stage."""
        copies = np.zeros((self.placement.num_ranks, self.placement.num_stages), np.int64)
        for rank, held in enumerate(self.placement.held):
            for stage, _ in held:
                copies[rank, stage] += 1
        return copies

    def _weights(self) -> _Array:
        """Return for each rank and stage the micro-batches that pass, without common factors."""
        shares = np.zeros((self.placement.num_ranks, self.placement.num_stages), np.int64)
        replicas = len(self.placement.ranks)
        each, more = divmod(self.num_micro_batches, replicas)
        for rank, held in enumerate(self.placement.held):
            for stage, replica in held:
                shares[rank, stage] += each + (replica < more)
        weights: _Array = shares // math.gcd(*map(int, shares.flat))
        return weights

    def _bytes(self) -> _Array:
        """Return prefix sums over layers of the memory that is static or from one micro-batch."""
        sums: _Array = self.table.static_up_to + self.table.saved_up_to
        return sums

    def _ample(self) -> tuple[_Array, _Array]:
        """Return prefix sums over layers of memory that is ample, and for each rank some more.

        One micro-batch needs no more than what its layers save, twice over, their outputs and the
        gradients of these, what the largest op of a layer adds, and the tensors at the boundaries
        of stages.
        """
        layers = [self.table.profile.layer_profile(n) for n in range(self.table.num_layers)]
        passed = [layer.output_bytes + layer.returned_bytes for layer in layers]
        saved = [2 * max(layer.saved_bytes, layer.saved_w_bytes) for layer in layers]
        rise = max(max(layer.rise_bytes.values()) for layer in layers)
        more: _Array = rise + 2 * max(passed) * self.held.sum(axis=1)
        of_layers = np.cumsum(np.add(saved, passed))
        return self.table.static_up_to + np.concatenate(([0], of_layers)), more

    # Moves

    def _even_start(self) -> _Array:
        """Return stages of equal work, as far as layers allow."""
        sizes = nearest_cut(self.works.up_to, [1] * self.placement.num_stages)
        return np.concatenate(([0], np.cumsum(sizes)))

    def _equal_starts(self) -> list[_Array]:
        """Return stages of equal numbers of layers."""
        cuts = equal_cuts(self.table, self.placement.num_stages)
        return [np.concatenate(([0], np.cumsum(sizes))) for sizes in cuts]

    def _kicked(self, edges: _Array, rng: np.random.Generator) -> _Array:
        """Return the partition after a few random moves that leave every stage a layer."""
        for _ in range(int(rng.integers(2, 6))):
            possible = self.moves.possible(edges)
            if len(possible):
                edges = self.moves.moved(edges, possible[rng.integers(len(possible))])
        return edges

    def _descend(self, state: _State, passed: set[bytes]) -> _State | None:
        """Take the best move until none is an improvement.

        Args:
            passed: the edges through which descents have gone; those of this one are added.

        Returns:
            Where it ends; None: where an earlier descent does, whose way it has met.
        """
        while (key := state.edges.tobytes()) not in passed:
            passed.add(key)
            if self.should_stop() or (better := self._better_neighbour(state)) is None:
                return state
            state = better
        return None

    def _better_neighbour(self, state: _State) -> _State | None:
        moves = self.moves.possible(state.edges)
        if len(moves) == 0:
            return None
        order = np.lexsort(self._estimate(moves, state)[::-1])
        for index in order[: SEVERAL_STAGES.tries_at_optimum if self.caps is not None else 1]:
            found = self._state(self.moves.moved(state.edges, moves[index]))
            if found.score < state.score:
                return found
            if self.should_stop():
                break
        return None

    # Scores

    def _state(self, edges: _Array) -> _State:
        needs = self._needs(edges)
        works = self._stage_works(edges[:-1], edges[1:])
        work_columns = self._columns((self.weights @ works)[None, :], _squares(works))
        columns = [*self._excess(needs[None, :]), *work_columns]
        return _State(edges, _Score(*(column[0].item() for column in columns)), needs)

    def _estimate(self, moves: _Array, state: _State) -> list[_Column]:
        """Estimate the score columns after moves, from a partition that was evaluated exactly."""
        edges, changes = state.edges, self.moves.changes
        works = self._stage_works(edges[:-1], edges[1:])
        ranks = changes(edges, moves, self._stage_works, self.weights)
        ranks += self.weights @ works
        one = np.ones((1, len(works)), np.int64)
        squares = changes(edges, moves, self._squares_of, one)[:, 0] + _squares(works)
        columns = self._columns(ranks, squares)
        if self.caps is None:
            return columns
        held = changes(
            edges, moves, lambda first, end: self.bytes[end] - self.bytes[first], self.held
        )
        return [*self._excess(held + state.need_bytes), *columns]

    def _columns(self, ranks: _Array, squares_of_stages: Any) -> list[_Column]:
        """Score partitions by the works of their ranks, a row for each partition."""
        squares = [(ranks.astype(np.float64) ** 2).sum(axis=1), np.atleast_1d(squares_of_stages)]
        if self.allowed_us is None:
            return [ranks.max(axis=1), *squares]
        return [np.maximum(ranks.max(axis=1), self.allowed_us), *squares[::-1]]

    def _squares_of(self, first: _Array, end: _Array) -> _Column:
        squares: _Column = self._stage_works(first, end).astype(np.float64) ** 2
        return squares

    def _rank_works(self, edges: _Array) -> _Array:
        works: _Array = self.weights @ self._stage_works(edges[:-1], edges[1:])
        return works

    def _stage_works(self, first: _Array, end: _Array) -> _Array:
        """Return the work of each stage, from where they begin and end."""
        works = self.works.of(first, end)
        if self.with_r.any():
            works[self.with_r] = self.works.of(first, end, recompute=True)[self.with_r]
        return works

    def _excess(self, needs: _Array) -> list[_Column]:
        if self.caps is None:
            return [np.zeros(len(needs), np.int64)] * 2
        excess = np.maximum(needs - self.caps, 0)
        return [excess.max(axis=1), excess.sum(axis=1)]

    def _needs(self, edges: _Array) -> _Array:
        """Return the least memory of each rank, exactly unless all surely fit; 0 without limits."""
        if self.caps is None:
            return np.zeros(self.placement.num_ranks, np.int64)
        ample = self.held @ np.diff(self.ample_bytes[edges]) + self.margin_bytes
        if (ample <= self.caps).all():
            return ample
        key = edges.tobytes()
        if key not in self.needs:
            costs = self.table.costs(tuple(map(int, edges)))
            problem = Problem(costs, self.placement, len(self.placement.ranks))
            self.needs[key] = np.array(needed_bytes(problem), np.int64)
        return self.needs[key]

    def _is_perfect(self, state: _State) -> bool:
        """Return True if all ranks have the same work and fit."""
        ranks = self._rank_works(state.edges)
        return state.score.worst_excess == 0 and bool(ranks.max() == ranks.min())


def _squares(works: _Array) -> float:
    return float((works.astype(np.float64) ** 2).sum())
