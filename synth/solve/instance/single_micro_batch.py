"""One micro-batch alone on a rank: the least peak that any order of its ops can have.

F's go down the rank's chunks and B's come up again; each W may run at any time after its B, or
with it as BW. Which W's still wait decides what memory holds, so the states are (steps done, W's
waiting), and the best order is the path whose highest point is lowest.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from synth.kinds import OpKind
from synth.solve.instance.instance import BW, B, F, View, W

# With more chunks there are too many sets of waiting W's to look at.
_MOST_CHUNKS = 10

Step = tuple[int, OpKind]


class _State(NamedTuple):
    """So many F's and B's are done, and these W's wait, as bits."""

    steps: int
    waiting: int


class LeastPeak(NamedTuple):
    """No order peaks below `proven_bytes`; `order` peaks at `peak_bytes`, in the view's terms."""

    proven_bytes: int
    peak_bytes: int
    order: tuple[Step, ...]


def least_peak(view: View, chunks: tuple[int, ...]) -> LeastPeak:
    """The order of one micro-batch's ops that needs least, chunks in forward order."""
    if len(chunks) > _MOST_CHUNKS:
        order = tuple(_plain(view, chunks))
        return LeastPeak(_loose_bytes(view, chunks), _peak_bytes(view, order), order)
    peak, order = _Paths(view, chunks).best()
    return LeastPeak(peak, peak, order)


class _Paths:
    """The least highest point of a path, by Dijkstra's algorithm."""

    def __init__(self, view: View, chunks: tuple[int, ...]) -> None:
        self.view, self.chunks, self.num_chunks = view, chunks, len(chunks)

    def best(self) -> tuple[int, tuple[Step, ...]]:
        """The peak, and the steps that lead there."""
        end = _State(2 * self.num_chunks, 0)
        heap: list[tuple[int, _State, int, tuple[Step, ...]]] = [(0, _State(0, 0), 0, ())]
        seen: set[_State] = set()
        while heap:
            peak, state, level, path = heapq.heappop(heap)
            if state == end:
                return peak, path
            if state in seen:
                continue
            seen.add(state)
            for (chunk, kind), after in self._moves(state):
                costs = self.view[chunk]
                higher = max(peak, level + costs.need_bytes[kind])
                later = level + costs.effect_bytes[kind]
                heapq.heappush(heap, (higher, after, later, (*path, (chunk, kind))))
        raise AssertionError("every state leads to the end")

    def _moves(self, state: _State) -> Iterator[tuple[Step, _State]]:
        steps, waiting = state
        for bit, chunk in enumerate(self.chunks):
            if waiting & (1 << bit):
                yield (chunk, W), _State(steps, waiting & ~(1 << bit))
        if steps < self.num_chunks:
            yield (self.chunks[steps], F), _State(steps + 1, waiting)
        elif steps < 2 * self.num_chunks:
            bit = 2 * self.num_chunks - 1 - steps
            yield (self.chunks[bit], BW), _State(steps + 1, waiting)
            yield (self.chunks[bit], B), _State(steps + 1, waiting | (1 << bit))


def _plain(view: View, chunks: tuple[int, ...]) -> Iterator[Step]:
    """Each W right behind its B, or BW where that needs less."""
    yield from ((chunk, F) for chunk in chunks)
    for chunk in reversed(chunks):
        effect, need = view[chunk].effect_bytes, view[chunk].need_bytes
        is_fused = need[BW] < max(need[B], effect[B] + need[W])
        yield from ((chunk, kind) for kind in ((BW,) if is_fused else (B, W)))


def _peak_bytes(view: View, order: tuple[Step, ...]) -> int:
    level = peak = 0
    for chunk, kind in order:
        peak = max(peak, level + view[chunk].need_bytes[kind])
        level += view[chunk].effect_bytes[kind]
    return peak


def _loose_bytes(view: View, chunks: tuple[int, ...]) -> int:
    """What each F and B (or BW) needs, on top of the least that can be there before it."""
    level = peak = 0
    for chunk in chunks:
        peak = max(peak, level + view[chunk].need_bytes[F])
        level += view[chunk].effect_bytes[F]
    for chunk in reversed(chunks):
        effect, need = view[chunk].effect_bytes, view[chunk].need_bytes
        peak = max(peak, level + min(need[B], need[BW]))
        level += min(effect[B], effect[BW])
    return peak
