"""Moves of an op among its neighbours, weighed by their effect on the mean over scenarios.

    now  | a  b  c  x  d |      x moves three places; the longest path through these four ops
    then | x  a  b  c  d |      follows from the arrivals of their inputs and their tails

All moves of a schedule are weighed at once. Paths through other ranks and buffers are ignored: a
weight only says what to try first.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from synth.costs.costs import IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import Flags
from synth.solver.evaluate.scenarios import NOTHING_US, ScenarioTimes, SpanTimes, Times
from synth.solver.tuning import ROBUSTNESS

# Bits for F, B and W in an op; two ops of a stage copy that share a bit keep their order.
_DOES = {OpKind.F: 1, OpKind.B: 2, OpKind.W: 4, OpKind.BW: 6}
_DOES_BY_CODE = np.array([_DOES.get(kind, 7) for kind in OpKind])


class Move(NamedTuple):
    """A run of ops in another order: `places` of the run; the op `moved` passes the others."""

    places: tuple[int, ...]
    moved: int


def _moves() -> Iterator[Move]:
    """Yield moves of an op by up to the farthest distance, to either side."""
    for distance in range(1, ROBUSTNESS.farthest + 1):
        yield Move((distance, *range(distance)), distance)
        if distance > 1:
            yield Move((*range(1, distance + 1), 0), 0)


class RatedMove(NamedTuple):
    """A move at all runs where it is possible, by their first nodes, with its merit there.

    Moves of merit 0 or less are not worth a try.
    """

    move: Move
    node: IntArray
    merit: Times


def weighed_moves(scenarios: ScenarioTimes) -> Iterator[RatedMove]:
    """All moves of a schedule."""
    around = _Around(scenarios)
    return map(around.weigh, _moves())


class _Around:
    """The arrivals of inputs and the tails around all ops, in all scenarios."""

    def __init__(self, scenarios: ScenarioTimes) -> None:
        self.scenarios, self.lowered = scenarios, scenarios.lowered
        before, after = self.lowered.edges
        num_nodes, num_ops = len(self.lowered.durations), self.lowered.first_node[-1]
        # Without the edges between neighbours of a rank, which a move changes.
        other = (after != before + 1) | (after >= num_ops)
        before, after = before[other], after[other]
        self.ready_us = np.maximum(_largest(scenarios.end_us[before], after, num_nodes), 0)
        self.tails_us = [scenarios.tails_us(span) for span in scenarios.spans]
        self.behind_us = [_largest(tails[after], before, num_nodes) for tails in self.tails_us]

    def weigh(self, move: Move) -> RatedMove:
        """Weigh a move wherever it is possible."""
        node = self._movable(move)
        new = [node + place for place in move.places]
        starts, at = [], self.scenarios.end_us[node - 1]
        for op in new:
            starts.append(np.maximum(at, self.ready_us[op]))
            at = starts[-1] + self.scenarios.durations_us[op]
        gain, near = np.zeros(len(node)), np.zeros(len(node))
        allowed = np.ones(len(node), dtype=np.bool_)
        for number, span in enumerate(self.scenarios.spans):
            now = self._longest_now(number, node, len(new))
            then = self._longest_then(number, span, node, new, starts)
            shorter = np.where(
                now >= span.length_us - ROBUSTNESS.tolerance_us, np.maximum(0, now - then), 0
            )
            longer = np.maximum(0, then - span.length_us)
            gain += span.weight * (shorter - longer).mean(axis=1)
            distance = (span.length_us - np.maximum(now, then)) / (
                ROBUSTNESS.near_share * span.length_us
            )
            near += span.weight * (np.exp(-np.maximum(0, distance)) * (now - then)).mean(axis=1)
            allowed &= longer[:, 0] <= ROBUSTNESS.tolerance_us
        # Moves that shorten the mean come first, then those that give slack to near-critical paths.
        largest = 1 + np.abs(near).max(initial=0)
        merit = np.where(gain > ROBUSTNESS.tolerance_us, largest * (1 + gain), near)
        return RatedMove(
            move, node, np.where(allowed & (gain >= -ROBUSTNESS.tolerance_us), merit, 0)
        )

    def _longest_now(self, span: int, node: IntArray, length: int) -> Times:
        """Return the longest path through one of the ops in their present order."""
        start, tails = self.scenarios.start_us, self.tails_us[span]
        ways = [start[node + i] + tails[node + i] for i in range(length)]
        longest: Times = np.max(ways, axis=0)
        return longest

    def _longest_then(
        self, number: int, span: SpanTimes, node: IntArray, new: list[IntArray], starts: list[Times]
    ) -> Times:
        """Return the longest path through the ops in the new order, the rest being unchanged."""
        following = node + len(new)
        rank = self.lowered.arrays.rank[node]
        ends = np.array(self.lowered.first_node)[rank + 1]
        tail = self.tails_us[number][np.minimum(following, ends - 1)]
        tail = np.where((following == ends)[:, None], -span.origin_us[rank], tail)
        longest = np.full_like(tail, NOTHING_US)
        for op, start in zip(reversed(new), reversed(starts), strict=True):
            tail = self.scenarios.durations_us[op] + np.maximum(tail, self.behind_us[number][op])
            longest = np.maximum(longest, start + tail)
        return longest

    def _movable(self, move: Move) -> IntArray:
        """Return the first nodes of the runs in which the op may pass the others.

        A rank's first op stays, since the period is counted from its start.
        """
        rank, length = self.lowered.arrays.rank, len(move.places)
        first, num_ops = np.array(self.lowered.first_node), self.lowered.first_node[-1]
        node = np.arange(max(0, num_ops - length + 1))
        node = node[(rank[node] == rank[node + length - 1]) & (node > first[rank[node]])]
        for place in range(length):
            if place != move.moved:
                node = node[~self._keep_order(node + move.moved, node + place)]
        movable: IntArray = node
        return movable

    def _keep_order(self, one: IntArray, other: IntArray) -> Flags:
        """Return where two ops must stay in order: of one micro-batch and copy, or of one kind."""
        arrays = self.lowered.arrays
        same_copy = (arrays.stage[one] == arrays.stage[other]) & (
            arrays.replica[one] == arrays.replica[other]
        )
        alike = _DOES_BY_CODE[arrays.kind[one]] & _DOES_BY_CODE[arrays.kind[other]] > 0
        same = arrays.microbatch[one] == arrays.microbatch[other]
        step = arrays.of_step[one] | arrays.of_step[other]
        ordered: Flags = step | (same_copy & (alike | same))
        return ordered


def _largest(values: Times, node: IntArray, num_nodes: int) -> Times:
    """Return for each node the largest of its rows."""
    largest = np.full((num_nodes, values.shape[1]), NOTHING_US)
    if len(node):
        order = node.argsort(kind="stable")
        ordered = node[order]
        begins = np.concatenate([[0], np.flatnonzero(np.diff(ordered)) + 1])
        largest[ordered[begins]] = np.maximum.reduceat(values[order], begins, axis=0)
    return largest
