"""Longest paths of a DAG in several scenarios at once, by array operations.

The nodes of a topological generation do not wait for each other, so all their times are found at
once. That pays where generations are wide: a schedule of 64 ranks and 512 micro-batches has 160,000
nodes in 2,300 generations. Where they are narrow, as with few ranks or in a chain, nodes are
visited one by one, and only scenarios are handled at once.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from synth.costs.costs import IntArray
from synth.solver.tuning import SCENARIOS

# Times by node and scenario, [node, scenario].
Times = npt.NDArray[Any]


class LongestPaths(Protocol):
    """The order in which the nodes of a DAG are visited."""

    def forwards(self, durations: Times) -> tuple[Times, Times]:
        """Return the start and the end of each node, as early as its predecessors allow."""
        ...

    def backwards(self, durations: Times, after: Times) -> Times:
        """Return the longest path from the start of each node.

        Args:
            durations: by node.
            after: by node, the least length of what follows it.
        """
        ...


def longest_paths(before: IntArray, after: IntArray, num_nodes: int) -> LongestPaths:
    """Choose the faster way for a graph.

    Args:
        before, after: the edges of an acyclic graph; node `before[i]` must end before node
            `after[i]` starts.
    """
    nodes = wide_generations(before, after, num_nodes)
    if nodes is None:
        return NodeByNode(before, after, num_nodes)
    return ByGeneration(before, after, nodes)


def wide_generations(before: IntArray, after: IntArray, num_nodes: int) -> list[IntArray] | None:
    """Return the nodes of each generation; None if there are few in the mean.

    The search for them ends soon in a long narrow graph.

    Raises:
        ValueError: the graph has a cycle, and is not found narrow before.
    """
    found: list[IntArray] = []
    num_reached = 0
    for nodes in _generations(before, after, num_nodes):
        found.append(nodes)
        num_reached += len(nodes)
        is_settled = len(found) >= SCENARIOS.generations_to_judge
        if is_settled and num_reached < SCENARIOS.least_mean_width * len(found):
            return None
    if num_reached < num_nodes:
        raise ValueError("the graph has a cycle")
    return found if num_nodes >= SCENARIOS.least_mean_width * len(found) else None


def _generations(before: IntArray, after: IntArray, num_nodes: int) -> Iterator[IntArray]:
    """Yield the nodes of each generation: those whose last predecessor is in the one before."""
    followers = after[before.argsort(kind="stable")]
    num_after = np.bincount(before, minlength=num_nodes)
    first_after = num_after.cumsum() - num_after
    waiting = np.bincount(after, minlength=num_nodes)
    seen = np.empty(num_nodes, dtype=np.int64)
    count = np.arange(len(followers) + 1)
    nodes = (waiting == 0).nonzero()[0]
    while len(nodes):
        yield nodes
        lengths = num_after.take(nodes)
        ends = lengths.cumsum()
        edges = np.repeat(first_after.take(nodes) - ends + lengths, lengths) + count[: ends[-1]]
        reached = followers.take(edges)
        np.subtract.at(waiting, reached, 1)
        free = reached[waiting.take(reached) == 0]
        # A node may occur several times: the occurrence whose number was stored remains.
        seen[free] = count[: len(free)]
        nodes = free[seen.take(free) == count[: len(free)]]


class NodeByNode:
    """Visits nodes one by one, each after its predecessors."""

    def __init__(self, before: IntArray, after: IntArray, num_nodes: int) -> None:
        waiting = np.bincount(after, minlength=num_nodes).tolist()
        self._followers: list[list[int]] = [[] for _ in range(num_nodes)]
        for node, later in zip(before.tolist(), after.tolist(), strict=True):
            self._followers[node].append(later)
        self._order = [node for node, number in enumerate(waiting) if number == 0]
        for node in self._order:
            for later in self._followers[node]:
                waiting[later] -= 1
                if not waiting[later]:
                    self._order.append(later)

    def forwards(self, durations: Times) -> tuple[Times, Times]:
        start = np.zeros_like(durations)
        rows = list(start)
        for node in self._order:
            end = rows[node] + durations[node]
            for later in self._followers[node]:
                np.maximum(rows[later], end, out=rows[later])
        return start, start + durations

    def backwards(self, durations: Times, after: Times) -> Times:
        tails = after.copy()
        rows = list(tails)
        for node in reversed(self._order):
            row = rows[node]
            for later in self._followers[node]:
                np.maximum(row, rows[later], out=row)
            row += durations[node]
        return tails


class ByGeneration:
    """Visits the nodes of a generation at once."""

    def __init__(self, before: IntArray, after: IntArray, nodes: list[IntArray]) -> None:
        self._before, self._after = before, after
        self._forwards = _Steps(before, after, nodes)

    def forwards(self, durations: Times) -> tuple[Times, Times]:
        return self._forwards.run(durations, np.zeros_like(durations))

    def backwards(self, durations: Times, after: Times) -> Times:
        return self._backwards.run(durations, after)[1]

    @cached_property
    def _backwards(self) -> "_Steps":
        nodes = list(_generations(self._after, self._before, len(self._forwards.place)))
        return _Steps(self._after, self._before, nodes)


class _Step(NamedTuple):
    """A generation: its places, and its predecessors.

    Array k of `before` has the k-th predecessor of each of the first nodes, as many as have one.
    """

    begin: int
    end: int
    before: list[IntArray]


class _Steps:
    """The nodes in places, generation by generation, those with more predecessors first."""

    def __init__(self, before: IntArray, after: IntArray, nodes: list[IntArray]) -> None:
        sizes = np.array([*map(len, nodes)], dtype=np.int64)
        generation = np.repeat(np.arange(len(sizes)), sizes)
        given = np.concatenate([*nodes, np.empty(0, dtype=np.int64)])
        num_before = np.bincount(after, minlength=len(given))
        self._node_at: IntArray = given[np.lexsort((-num_before[given], generation))]
        self.place = np.empty_like(self._node_at)
        self.place[self._node_at] = np.arange(len(given))
        self._steps = self._steps_of(before, after, num_before[self._node_at], generation, sizes)

    def _steps_of(
        self,
        before: IntArray,
        after: IntArray,
        num_before: IntArray,
        generation: IntArray,
        sizes: IntArray,
    ) -> list[_Step]:
        """Return the steps.

        Args:
            before, after: the edges.
            num_before: by place, the number of predecessors.
            generation: by place.
            sizes: the number of nodes of each generation.
        """
        place = self.place[after]
        order = place.argsort(kind="stable")
        place, before = place[order], self.place[before[order]]
        which = np.arange(len(place)) - (num_before.cumsum() - num_before)[place]
        # By generation, then by the number among the node's predecessors, then by node.
        order = np.lexsort((place, which, generation[place]))
        before, which, of_edge = before[order], which[order], generation[place][order]
        is_new = (np.diff(which, prepend=-1) != 0) | (np.diff(of_edge, prepend=-1) != 0)
        cuts = [*is_new.nonzero()[0].tolist(), len(before)]
        groups: list[list[IntArray]] = [[] for _ in sizes]
        for begin, end in pairwise(cuts):
            groups[of_edge[begin]].append(before[begin:end])
        bounds = pairwise([0, *sizes.cumsum().tolist()])
        return [_Step(*ends, group) for ends, group in zip(bounds, groups, strict=True)]

    def run(self, durations: Times, earliest: Times) -> tuple[Times, Times]:
        """Return the start and the end of each node, no earlier than given."""
        lasting, start = durations.take(self._node_at, axis=0), earliest.take(self._node_at, axis=0)
        end = np.empty_like(start)
        for begin, stop, before in self._steps:
            for nodes in before:
                some = start[begin : begin + len(nodes)]
                np.maximum(some, end.take(nodes, axis=0), out=some)
            np.add(start[begin:stop], lasting[begin:stop], out=end[begin:stop])
        return start.take(self.place, axis=0), end.take(self.place, axis=0)
