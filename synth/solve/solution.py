"""Start times in the models' terms: from an order, to an order, and what they are worth.

The models name the k-th op of a kind that a chunk starts number k, whatever micro-batch it belongs
to (the FIFO lemma), and write BW as a B with a W right behind it.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.kinds import OpKind
from synth.objective import Objective, Spans
from synth.schedule.ops import Op
from synth.solve.view import BW, SPLIT, STEP, B, F, Slot, View, W

Starts = dict[tuple[int, Slot], int]
Programs = tuple[tuple[Op, ...], ...]

# For each rank, (chunk, kind) of its ops: the k-th of a kind is micro-batch k of the chunk.
Orders = Sequence[Sequence[tuple[int, OpKind]]]


class Pair(NamedTuple):
    """Of a chunk, the B and the W (by their numbers) that one BW does."""

    chunk: int
    backward: int
    weight: int


@dataclass(frozen=True)
class Solution:
    """When each op starts, and which B and W are fused."""

    starts: Starts
    fused: frozenset[Pair] = field(default=frozenset())

    def programs(self, view: View) -> Programs:
        """Read the orders off the starts, as ops."""
        return tuple(number(view, order) for order in self.orders(view))

    def orders(self, view: View) -> Orders:
        """Read the orders off the starts; ops of no duration follow F, B, W and their number."""
        fused_b = {(pair.chunk, pair.backward) for pair in self.fused}
        fused_w = {(pair.chunk, pair.weight) for pair in self.fused}
        ordered: list[list[tuple[int, int, int, int, OpKind]]] = [[] for _ in view.room_bytes]
        for (chunk, (kind, k)), start in self.starts.items():
            if kind == W and (chunk, k) in fused_w:
                continue
            written = BW if kind == B and (chunk, k) in fused_b else kind
            # Among ops of no duration, later stages' B's come before those of earlier stages.
            depth = chunk if kind == F else -chunk
            at = (start, kind.rank_in_chain, k, depth, written)
            ordered[view[chunk].rank].append(at)
        return tuple(tuple((abs(depth), kind) for *_, depth, kind in sorted(o)) for o in ordered)

    def value_us(self, view: View, objective: Objective) -> int:
        """The objective in the model's terms: no transfer waits for a buffer."""
        return objective.value_us(self.spans(view))

    def spans(self, view: View) -> Spans:
        """Makespan and period, in the same terms."""
        return Spans.of_ranks(self._ranks_us(view))

    def _ranks_us(self, view: View) -> Iterator[tuple[int, int]]:
        """When each rank begins, and when it has ended with its STEPs."""
        ends = dict(self._ends_of_chunks(view))
        reduced = reduced_us(view, ends)
        for held in view.held:
            at = max(ends[chunk] for chunk in held)
            for chunk in held:
                ready = reduced.get(view[chunk].stage, 0)
                at = max(at, ready) + view[chunk].duration_us[STEP]
            yield min(self.starts[chunk, Slot(F, 0)] for chunk in held), at

    def _ends_of_chunks(self, view: View) -> Iterable[tuple[int, int]]:
        """When the last W of each chunk ends."""
        last_pairs = {p.chunk: p for p in self.fused if p.weight == view[p.chunk].last}
        for index, chunk in enumerate(view.chunks):
            start = self.starts[index, Slot(W, chunk.last)] + chunk.duration_us[W]
            if index in last_pairs:
                slot = Slot(B, last_pairs[index].backward)
                start = self.starts[index, slot] + chunk.duration_us[BW]
            yield index, start


def reduced_us(view: View, ends: dict[int, int]) -> dict[int, int]:
    """When the gradients of each stage are those of all its copies.

    Reductions among the same ranks take turns, here as they become ready.
    """
    reduced: dict[int, int] = {}
    for stages in view.reductions.values():
        ready = sorted((max(ends[copy] for copy in view.copies(s)), s) for s in stages)
        free = 0
        for at, stage in ready:
            free = max(free, at) + view[view.copies(stage)[0]].reduce_us
            reduced[stage] = free
    return reduced


def number(view: View, order: Iterable[tuple[int, OpKind]]) -> tuple[Op, ...]:
    """Turn an order of (chunk, kind) into ops: per chunk and kind, micro-batches in order.

    B and BW count as one kind; W takes up the oldest B that waits for it.
    """
    forwards: defaultdict[int, int] = defaultdict(int)
    backwards: defaultdict[int, int] = defaultdict(int)
    waiting: defaultdict[int, deque[int]] = defaultdict(deque)
    ops = []
    for chunk, kind in order:
        if kind == F:
            k = forwards[chunk]
            forwards[chunk] += 1
        elif kind == W:
            k = waiting[chunk].popleft()
        else:
            k = backwards[chunk]
            backwards[chunk] += 1
            if kind == B:
                waiting[chunk].append(k)
        ops.append(view[chunk].op(kind, k))
    return tuple(ops)


def order_of(view: View, program: Sequence[Op]) -> list[tuple[int, OpKind]]:
    """An order of (chunk, kind) without STEP, the reverse of `number`."""
    index = view.index
    return [(index[op.stage, op.replica], op.kind) for op in program if op.kind != STEP]


def shares_alike(view: View, programs: Sequence[Sequence[Op]]) -> bool:
    """Whether as many micro-batches pass each replica as the problem says."""
    counts = [0] * len(view)
    for program in programs:
        for chunk, kind in order_of(view, program):
            counts[chunk] += kind == F
    return counts == [chunk.num_micro_batches for chunk in view.chunks]


def solution_of(programs: Sequence[Sequence[Op]], view: View) -> Solution:
    """Simulate orders, each op as early as possible, transfers of a link in turns.

    Raises:
        StuckError: ops wait for each other.
    """
    return timed([order_of(view, program) for program in programs], view)


def timed(orders: Orders, view: View) -> Solution:
    """The same for orders of (chunk, kind)."""
    return _Simulation(orders, view).run()


class StuckError(Exception):
    """Orders whose ops wait for each other."""


class _Simulation:
    """Ranks take turns; each runs until an op's input is not there yet."""

    def __init__(self, orders: Orders, view: View) -> None:
        self.view, self.orders = view, orders
        self.counts = [dict.fromkeys(SPLIT, 0) for _ in view.chunks]
        self.places = [0] * len(orders)
        self.free_us = [0] * len(orders)
        self.arrivals: dict[tuple[int, OpKind], list[int]] = {
            (chunk, kind): [] for chunk in range(len(view)) for kind in (F, B)
        }
        self.link_free_us: dict[tuple[int, int], int] = {}
        self.starts: Starts = {}
        self.fused: set[Pair] = set()

    def run(self) -> Solution:
        pending = set(range(len(self.orders)))
        while pending:
            pending = {other for rank in pending for other in self._advance(rank)}
        if any(place < len(o) for place, o in zip(self.places, self.orders, strict=True)):
            raise StuckError
        return Solution(self.starts, frozenset(self.fused))

    def _advance(self, rank: int) -> set[int]:
        """Run a rank as far as it goes; which ranks were sent something."""
        order, awake = self.orders[rank], set()
        while self.places[rank] < len(order):
            chunk, kind = order[self.places[rank]]
            at = self._ready_us(chunk, F if kind == F else B) if kind != W else 0
            if at is None:
                break
            awake |= self._place(chunk, kind, max(at, self.free_us[rank]))
            self.places[rank] += 1
        return awake

    def _ready_us(self, chunk: int, kind: OpKind) -> int | None:
        """When the input of the next F or B arrives; None: not known yet."""
        if self.view[chunk].above is None and kind == F:
            return 0
        arrived = self.arrivals[chunk, kind]
        count = self.counts[chunk][kind]
        return arrived[count] if count < len(arrived) else None

    def _place(self, index: int, kind: OpKind, at: int) -> set[int]:
        chunk, counts = self.view[index], self.counts[index]
        durations = chunk.duration_us
        end = self.free_us[chunk.rank] = at + durations[kind]
        if kind == BW:
            self.fused.add(Pair(index, counts[B], counts[W]))
        for part in (B, W) if kind == BW else (kind,):
            self.starts[index, Slot(part, counts[part])] = at
            at += min(durations[B], durations[BW])
            counts[part] += 1
        if kind == F and chunk.below is None:
            self.arrivals[index, B].append(end)
        elif kind == F and chunk.below is not None:
            return self._send(index, chunk.below, F, end, chunk.down_us)
        elif kind in (B, BW) and chunk.above is not None:
            return self._send(index, chunk.above, B, end, self.view[chunk.above].up_us)
        return set()

    def _send(self, source: int, target: int, kind: OpKind, end: int, lag_us: int) -> set[int]:
        link = (self.view[source].rank, self.view[target].rank)
        if link[0] != link[1]:
            end = max(end, self.link_free_us.get(link, 0)) + lag_us
            self.link_free_us[link] = end
        self.arrivals[target, kind].append(end)
        return {link[1]} - {link[0]}


def split(programs: Sequence[Sequence[Op]], view: View) -> Programs:
    """An order with B W for BW and without STEP."""
    return tuple(
        number(
            view,
            [
                (chunk, part)
                for chunk, kind in order_of(view, program)
                for part in ((B, W) if kind == BW else (kind,))
            ],
        )
        for program in programs
    )


def keeps_caps(programs: Sequence[Sequence[Op]], view: View) -> bool:
    """Whether every op is allowed where it stands."""
    for program in programs:
        level = 0
        for chunk, kind in order_of(view, program):
            if not view.allows(chunk, kind, level):
                return False
            level += view[chunk].effect_bytes[kind]
    return True
