"""The changes by moves of stage boundaries, against the partitions that they lead to."""

import numpy as np
import pytest

from synth.costs.costs import IntArray
from synth.plan.partition.boundary_moves import BoundaryMoves


@pytest.mark.parametrize("seed", range(20))
def test_the_changes_of_all_moves_are_those_of_making_each_move(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_stages, num_ranks, num_layers = int(rng.integers(1, 7)), 3, 20
    inner = rng.choice(np.arange(1, num_layers), num_stages - 1, replace=False)
    edges = np.array([0, *sorted(inner), num_layers])
    table = rng.integers(0, 100, (num_layers + 1, num_layers + 1))
    shares = rng.integers(0, 3, (num_ranks, num_stages))

    def values(first: IntArray, end: IntArray) -> IntArray:
        return np.asarray(table[first, end])

    def of_ranks(at: IntArray) -> IntArray:
        return np.asarray(shares @ values(at[:-1], at[1:]))

    moves = BoundaryMoves(num_stages)
    possible = moves.possible(edges)
    changes = moves.changes(edges, possible, values, shares)
    for move, change in zip(possible, changes, strict=True):
        after = moves.moved(edges, move)
        assert (np.diff(after) > 0).all()
        assert (of_ranks(after) - of_ranks(edges)).tolist() == change.tolist()
    shifted = [moves.moved(edges, move) for move in range(len(moves))]
    assert len(possible) == sum((np.diff(after) > 0).all() for after in shifted)
