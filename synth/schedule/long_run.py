"""The exact time of a repetition of an order that repeats forever: a maximum cycle ratio.

The ops and transfers of a lowered schedule whose order repeats are classes of nodes that occur once
in each repetition. An edge from class a to class b spans d repetitions: b of repetition i waits for
a of repetition i − d. The starts are a linear system in the max-plus algebra, and in the long run a
repetition takes the largest ratio over all cycles of classes,

    durations of the cycle's nodes / repetitions that its edges span

(Baccelli, Cohen, Olsder, Quadrat, Synchronization and Linearity, 1992, section 2.5). The ratio of
some cycle is raised to that of a cycle that is above it, until there is none: then no cycle has
positive weight, where an edge weighs its duration less the ratio for each repetition. Everything is
in whole numbers, so the result is exact.
"""

from fractions import Fraction

import numpy as np

from synth.costs.costs import IntArray
from synth.schedule.arrays import Flags
from synth.schedule.lowering.lower import Lowered


def repetition_us(lowered: Lowered, size: int, full: Flags) -> Fraction | None:
    """The time of a repetition in the long run, in microseconds.

    Args:
        lowered: a schedule without a flush, with one copy of each stage.
        size: micro-batches after which order and updates repeat.
        full: a mask of the ops around which the order repeats, on their rank.

    Returns:
        None if a repetition is not there in full on all ranks and links.
    """
    graph = _CyclicGraph.of(lowered, size, full)
    return None if graph is None else graph.largest_ratio()


class _CyclicGraph:
    """Classes of nodes, and edges between them, ordered by the class that waits."""

    def __init__(self, before: IntArray, after: IntArray, us: IntArray, spans: IntArray) -> None:
        order = after.argsort(kind="stable")
        self._before, self._us, self._spans = before[order], us[order], spans[order]
        self._after, self._first = np.unique(after[order], return_index=True)
        self._num = int(max(before.max(), after.max())) + 1
        self._edge_after = after[order]

    @classmethod
    def of(cls, lowered: Lowered, size: int, full: Flags) -> "_CyclicGraph | None":
        """The graph of a schedule, read off the last node of each class amid the repetitions."""
        classes, repetition = _classes(lowered, size)
        transfers = lowered.transfer_table
        is_amid = np.concatenate([full, full[transfers.made] & full[transfers.read]])
        amid = is_amid.nonzero()[0]
        amid = amid[repetition[amid].argsort(kind="stable")]
        chosen = np.full(int(classes.max()) + 1, -1)
        chosen[classes[amid]] = amid
        before, after = lowered.edges
        if (chosen[classes] < 0).any():
            return None
        is_chosen = chosen[classes[after]] == after
        before, after = before[is_chosen], after[is_chosen]
        spans = repetition[after] - repetition[before]
        return cls(classes[before], classes[after], lowered.durations[before], spans)

    def largest_ratio(self) -> Fraction:
        """The largest ratio over all cycles."""
        ratio = Fraction(0)
        while (cycle := self._positive_cycle(ratio)) is not None:
            ratio = Fraction(int(self._us[cycle].sum()), int(self._spans[cycle].sum()))
        return ratio

    def _positive_cycle(self, ratio: Fraction) -> list[int] | None:
        """The edges of a cycle whose ratio is larger; None: there is none (Bellman, Ford)."""
        weight = self._us * ratio.denominator - self._spans * ratio.numerator
        longest = np.zeros(self._num, dtype=np.int64)
        last_edge = np.full(self._num, -1)
        look = 1
        for step in range(1, self._num + 2):
            through = longest[self._before] + weight
            best = np.maximum.reduceat(through, self._first)
            is_longer = best > longest[self._after]
            if not is_longer.any():
                return None
            at_best = (through == np.repeat(best, np.diff([*self._first, len(through)]))).nonzero()
            edge_of = np.full(self._num, -1)
            edge_of[self._edge_after[at_best]] = at_best[0]
            longer = self._after[is_longer]
            longest[longer], last_edge[longer] = best[is_longer], edge_of[longer]
            if step >= look:
                look *= 2
                cycle = self._cycle(last_edge)
                if cycle is not None:
                    return cycle
        return self._cycle(last_edge)

    def _cycle(self, last_edge: IntArray) -> list[int] | None:
        """The edges of a cycle among the last edges of longest ways; its weight is positive."""
        edges, before = last_edge.tolist(), self._before.tolist()
        seen = [-1] * self._num
        for start in range(self._num):
            node, way = start, []
            while edges[node] >= 0 and seen[node] < 0:
                seen[node] = start
                way.append(edges[node])
                node = before[edges[node]]
            if edges[node] >= 0 and seen[node] == start and way:
                first = next(i for i, e in enumerate(way) if e == edges[node])
                return way[first:]
        return None


def _classes(lowered: Lowered, size: int) -> tuple[IntArray, IntArray]:
    """By node its class and its repetition; a transfer's are those of the op that makes its value.

    A STEP is of the first micro-batch of its update.
    """
    arrays = lowered.arrays
    first = np.where(arrays.of_step, arrays.update_size, 1) * arrays.microbatch
    repetition, place = first // size, first % size
    of_op = (arrays.kind * arrays.num_stages + arrays.stage) * size + place
    made = lowered.transfer_table.made
    classes = np.concatenate([of_op, of_op[made] + of_op.max() + 1])
    _, numbers = np.unique(classes, return_inverse=True)
    return numbers, np.concatenate([repetition, repetition[made]])
