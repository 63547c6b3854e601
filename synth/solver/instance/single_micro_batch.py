"""The least peak of one micro-batch alone on a rank, over all orders of its ops.

F's go down the rank's stage copies and B's come up again; each W may run at any time after its B,
or with it as BW. The usage depends on the W's that still wait, so the states are (steps done, W's
waiting), and the best order is the path whose highest point is lowest (a bottleneck shortest path).
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.solver.instance.instance import BW, B, F, Instance, W
from synth.solver.tuning import SEARCH

Step = tuple[int, OpKind]


class _State(NamedTuple):
    """The number of F's and B's done, and the W's that wait, as bits."""

    steps: int
    waiting: int


class LeastPeak(NamedTuple):
    """No order peaks below `proven_bytes`; `order` peaks at `peak_bytes` of the instance."""

    proven_bytes: int
    peak_bytes: int
    order: tuple[Step, ...]


def least_peak(instance: Instance, copies: tuple[int, ...]) -> LeastPeak:
    """Find the order of one micro-batch's ops with the least peak.

    Args:
        copies: those of one replica on a rank, in forward order.
    """
    if len(copies) > SEARCH.most_copies_of_least_peak:
        order = tuple(_plain(instance, copies))
        return LeastPeak(_loose_bytes(instance, copies), _peak_bytes(instance, order), order)
    peak, order = _Paths(instance, copies).best()
    return LeastPeak(peak, peak, order)


class _Paths:
    """The path whose highest point is lowest, by Dijkstra's algorithm."""

    def __init__(self, instance: Instance, copies: tuple[int, ...]) -> None:
        self.instance, self.copies, self.num_copies = instance, copies, len(copies)

    def best(self) -> tuple[int, tuple[Step, ...]]:
        """Return the peak and the steps of the best path."""
        end = _State(2 * self.num_copies, 0)
        heap: list[tuple[int, _State, int, tuple[Step, ...]]] = [(0, _State(0, 0), 0, ())]
        seen: set[_State] = set()
        while heap:
            peak, state, usage, path = heapq.heappop(heap)
            if state == end:
                return peak, path
            if state in seen:
                continue
            seen.add(state)
            for (copy, kind), after in self._moves(state):
                costs = self.instance[copy]
                higher = max(peak, usage + costs.peak_above_bytes[kind])
                later = usage + costs.delta_bytes[kind]
                heapq.heappush(heap, (higher, after, later, (*path, (copy, kind))))
        raise RuntimeError("every state leads to the end")

    def _moves(self, state: _State) -> Iterator[tuple[Step, _State]]:
        steps, waiting = state
        for bit, copy in enumerate(self.copies):
            if waiting & (1 << bit):
                yield (copy, W), _State(steps, waiting & ~(1 << bit))
        if steps < self.num_copies:
            yield (self.copies[steps], F), _State(steps + 1, waiting)
        elif steps < 2 * self.num_copies:
            bit = 2 * self.num_copies - 1 - steps
            yield (self.copies[bit], BW), _State(steps + 1, waiting)
            yield (self.copies[bit], B), _State(steps + 1, waiting | (1 << bit))


def _plain(instance: Instance, copies: tuple[int, ...]) -> Iterator[Step]:
    """Yield an order with each W right after its B, or BW where that needs less."""
    yield from ((copy, F) for copy in copies)
    for copy in reversed(copies):
        delta, peak_above = instance[copy].delta_bytes, instance[copy].peak_above_bytes
        is_fused = peak_above[BW] < max(peak_above[B], delta[B] + peak_above[W])
        yield from ((copy, kind) for kind in ((BW,) if is_fused else (B, W)))


def _peak_bytes(instance: Instance, order: tuple[Step, ...]) -> int:
    usage = peak = 0
    for copy, kind in order:
        peak = max(peak, usage + instance[copy].peak_above_bytes[kind])
        usage += instance[copy].delta_bytes[kind]
    return peak


def _loose_bytes(instance: Instance, copies: tuple[int, ...]) -> int:
    """Bound the peak by each F and B (or BW) on top of the least usage before it."""
    usage = peak = 0
    for copy in copies:
        peak = max(peak, usage + instance[copy].peak_above_bytes[F])
        usage += instance[copy].delta_bytes[F]
    for copy in reversed(copies):
        delta, peak_above = instance[copy].delta_bytes, instance[copy].peak_above_bytes
        peak = max(peak, usage + min(peak_above[B], peak_above[BW]))
        usage += min(delta[B], delta[BW])
    return peak
