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
from synth.solve.instance.event_graph import Graph
from synth.solve.instance.instance import BW, STEP, B, F, Slot, View, W

Starts = dict[tuple[int, Slot], int]
Programs = tuple[tuple[Op, ...], ...]

# For each rank, (chunk, kind) of its ops: the k-th of a kind is micro-batch k of the chunk.
Orders = Sequence[Sequence[tuple[int, OpKind]]]


class Unrolled(NamedTuple):
    """Orders that keep the caps of a view, and what they are worth if no transfer waits."""

    programs: Programs
    value_us: int
    found_by: str


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
        begins_us = [self.starts[chunk, Slot(F, 0)] for chunk in range(len(view))]
        return spans_of(view, begins_us, list(self._ends_of_chunks(view)))

    def _ends_of_chunks(self, view: View) -> Iterator[int]:
        """When the last W of each chunk ends."""
        last_pairs = {p.chunk: p for p in self.fused if p.weight == view[p.chunk].last}
        for index, chunk in enumerate(view.chunks):
            start = self.starts[index, Slot(W, chunk.last)] + chunk.duration_us[W]
            if index in last_pairs:
                slot = Slot(B, last_pairs[index].backward)
                start = self.starts[index, slot] + chunk.duration_us[BW]
            yield start


def spans_of(view: View, begins_us: Sequence[int], ends_us: Sequence[int]) -> Spans:
    """Makespan and period by when each chunk's first F begins and its last W ends."""
    return Spans.of_ranks(_ranks_us(view, begins_us, ends_us))


def _ranks_us(
    view: View, begins_us: Sequence[int], ends_us: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """When each rank begins, and when it has ended with its STEPs."""
    reduced = reduced_us(view, ends_us)
    for held in view.held:
        at = max(ends_us[chunk] for chunk in held)
        for chunk in held:
            ready = reduced.get(view[chunk].stage, 0)
            at = max(at, ready) + view[chunk].duration_us[STEP]
        yield min(begins_us[chunk] for chunk in held), at


def reduced_us(view: View, ends_us: Sequence[int]) -> dict[int, int]:
    """When the gradients of each stage are those of all its copies.

    Reductions among the same ranks take turns, here as they become ready.
    """
    reduced: dict[int, int] = {}
    for stages in view.reductions.values():
        ready = sorted((max(ends_us[copy] for copy in view.copies(s)), s) for s in stages)
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
        StuckError: ops wait for each other, see `synth.solve.instance.event_graph`.
    """
    return timed([order_of(view, program) for program in programs], view)


def timed(orders: Orders, view: View) -> Solution:
    """The same for orders of (chunk, kind)."""
    graph = Graph(view)
    started, sequence, durations_us, fused = _started(orders, graph)
    starts = {graph.nodes[op]: started[op] for op in sequence}
    pairs: list[Pair] = []
    for backward, weight in fused:
        (chunk, (_, b)), (_, (_, w)) = graph.nodes[backward], graph.nodes[weight]
        pairs.append(Pair(chunk, b, w))
        shorter_us = min(graph.duration_us[backward], durations_us[backward])
        starts[chunk, Slot(W, w)] = started[backward] + shorter_us
    return Solution(starts, frozenset(pairs))


def value_us(orders: Orders, graph: Graph, objective: Objective) -> int:
    """What orders of (chunk, kind) are worth if no transfer waits for a buffer.

    Raises:
        StuckError: ops wait for each other.
    """
    view, chunks = graph.view, range(len(graph.view))
    starts, _, durations_us, fused = _started(orders, graph)
    ends_with = {weight: backward for backward, weight in fused}
    lasts = (graph.last(chunk, W) for chunk in chunks)
    ends_us = [starts[op] + durations_us[op] for op in (ends_with.get(w, w) for w in lasts)]
    begins_us = [starts[graph.first[chunk, F]] for chunk in chunks]
    return objective.value_us(spans_of(view, begins_us, ends_us))


class _Started(NamedTuple):
    """Of each op by its number when it starts and how long it takes, BW as its B."""

    starts: list[int]
    sequence: list[int]
    durations_us: list[int]
    fused: list[tuple[int, int]]


def _started(orders: Orders, graph: Graph) -> _Started:
    durations_us = graph.duration_us.copy()
    numbered = [graph.numbered(order) for order in orders]
    fused = [each for _, pairs in numbered for each in pairs]
    for backward, _ in fused:
        durations_us[backward] = graph.view[graph.nodes[backward][0]].duration_us[BW]
    starts, sequence = graph.start([ops for ops, _ in numbered], durations_us)
    return _Started(starts, sequence, durations_us, fused)


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
    most_in_flight = [view.most_in_flight(chunk) for chunk in range(len(view))]
    for program in programs:
        level = 0
        in_flight = [0] * len(view)
        for chunk, kind in order_of(view, program):
            in_flight[chunk] += {F: 1, W: 0}.get(kind, -1)
            most = most_in_flight[chunk]
            if not view.allows(chunk, kind, level) or (
                most is not None and in_flight[chunk] > most
            ):
                return False
            level += view[chunk].effect_bytes[kind]
    return True
