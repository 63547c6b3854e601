"""Start times in the models' terms: from orders, to orders, and their objective.

The k-th op of a kind that a stage copy starts has number k, whatever its micro-batch (the FIFO
lemma). BW is written as a B with a W right after it.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.objective import Objective, Spans
from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.solver.instance.event_graph import Graph
from synth.solver.instance.instance import BW, STEP, B, F, Instance, OpIndex, W

Starts = dict[tuple[int, OpIndex], int]
Programs = tuple[tuple[Op, ...], ...]

# For each rank, (copy, kind) of its ops: the k-th of a kind is micro-batch k of the stage copy.
Orders = Sequence[Sequence[tuple[int, OpKind]]]


class ScoredOrders(NamedTuple):
    """Orders of (copy, kind) by rank, and their objective if no transfer waits for a buffer."""

    orders: Orders
    value_us: int

    def programs(self, instance: Instance) -> Programs:
        """Number the ops: each kind of a copy takes micro-batches in order."""
        return tuple(number(instance, order) for order in self.orders)


class ScoredPrograms(NamedTuple):
    """Programs that keep the caps of an instance, and their objective if no transfer waits."""

    programs: Programs
    value_us: int
    found_by: str


class Pair(NamedTuple):
    """The B and the W of a stage copy, by number, that one BW does."""

    copy: int
    backward: int
    weight: int


@dataclass(frozen=True)
class TimedOrders:
    """The start of each op, and the B's and W's that are fused."""

    starts: Starts
    fused: frozenset[Pair] = field(default=frozenset())

    def programs(self, instance: Instance) -> Programs:
        """Read the orders off the starts, as ops."""
        return tuple(number(instance, order) for order in self.orders(instance))

    def orders(self, instance: Instance) -> Orders:
        """Read the orders off the starts; ops of no duration follow F, B, W and their number."""
        fused_b = {(pair.copy, pair.backward) for pair in self.fused}
        fused_w = {(pair.copy, pair.weight) for pair in self.fused}
        ordered: list[list[tuple[int, int, int, int, OpKind]]] = [
            [] for _ in instance.headroom_bytes
        ]
        for (copy, (kind, k)), start in self.starts.items():
            if kind == W and (copy, k) in fused_w:
                continue
            written = BW if kind == B and (copy, k) in fused_b else kind
            # Among ops of no duration, later stages' B's come before those of earlier stages.
            depth = copy if kind == F else -copy
            at = (start, kind.rank_in_chain, k, depth, written)
            ordered[instance[copy].rank].append(at)
        return tuple(tuple((abs(depth), kind) for *_, depth, kind in sorted(o)) for o in ordered)

    def value_us(self, instance: Instance, objective: Objective) -> int:
        """Return the objective if no transfer waits for a buffer."""
        return objective.value_us(self.spans(instance))

    def spans(self, instance: Instance) -> Spans:
        """Return makespan and period if no transfer waits for a buffer."""
        begins_us = [self.starts[copy, OpIndex(F, 0)] for copy in range(len(instance))]
        places = last_places(instance, self.orders(instance)) if instance.reductions else None
        return spans_of(instance, begins_us, list(self._ends_of_copies(instance)), places)

    def _ends_of_copies(self, instance: Instance) -> Iterator[int]:
        """Yield the end of the last W of each stage copy."""
        last_pairs = {p.copy: p for p in self.fused if p.weight == instance[p.copy].last}
        for index, copy in enumerate(instance.copies):
            start = self.starts[index, OpIndex(W, copy.last)] + copy.duration_us[W]
            if index in last_pairs:
                op_index = OpIndex(B, last_pairs[index].backward)
                start = self.starts[index, op_index] + copy.duration_us[BW]
            yield start


def spans_of(
    instance: Instance,
    begins_us: Sequence[int],
    ends_us: Sequence[int],
    places: Sequence[int] | None = None,
) -> Spans:
    """Makespan and period, from the start of each copy's first F and the end of its last W.

    Args:
        begins_us: by stage copy, the start of its first F.
        ends_us: by stage copy, the end of its last W or BW.
        places: by stage copy, the place of that op in its rank's program, see `reduced_us`.
    """
    return Spans.of_ranks(_ranks_us(instance, begins_us, ends_us, places))


def last_places(instance: Instance, orders: Orders) -> list[int]:
    """Return by stage copy the place of its last W or BW in its rank's order."""
    places = [0] * len(instance)
    for order in orders:
        for place, (copy, kind) in enumerate(order):
            if kind in (W, BW):
                places[copy] = place
    return places


def _ranks_us(
    instance: Instance,
    begins_us: Sequence[int],
    ends_us: Sequence[int],
    places: Sequence[int] | None,
) -> Iterator[tuple[int, int]]:
    """Yield the start of each rank, and its end with its STEPs."""
    reduced = reduced_us(instance, ends_us, places)
    for held in instance.held:
        at = max(ends_us[copy] for copy in held)
        for copy in held:
            ready = reduced.get(instance[copy].stage, 0)
            at = max(at, ready) + instance[copy].duration_us[STEP]
        yield min(begins_us[copy] for copy in held), at


def reduced_us(
    instance: Instance, ends_us: Sequence[int], places: Sequence[int] | None = None
) -> dict[int, int]:
    """Return by stage the end of the all-reduce of its gradients.

    All-reduces among the same ranks run one at a time, by the places of the last W's, as
    `schedule.lowering.collectives` has them. Without places they run as they become ready, which
    is no later.
    """
    reduced: dict[int, int] = {}
    by = ends_us if places is None else places
    for stages in instance.reductions.values():
        turns = sorted((max(by[copy] for copy in instance.copies_of(s)), s) for s in stages)
        free = 0
        for _, stage in turns:
            at = max(ends_us[copy] for copy in instance.copies_of(stage))
            free = max(free, at) + instance[instance.copies_of(stage)[0]].reduce_us
            reduced[stage] = free
    return reduced


def number(instance: Instance, order: Iterable[tuple[int, OpKind]]) -> tuple[Op, ...]:
    """Turn an order of (copy, kind) into ops: per stage copy and kind, micro-batches in order.

    B and BW count as one kind; W takes up the oldest B that waits for it.
    """
    forwards: defaultdict[int, int] = defaultdict(int)
    backwards: defaultdict[int, int] = defaultdict(int)
    waiting: defaultdict[int, deque[int]] = defaultdict(deque)
    ops = []
    for copy, kind in order:
        if kind == F:
            k = forwards[copy]
            forwards[copy] += 1
        elif kind == W:
            k = waiting[copy].popleft()
        else:
            k = backwards[copy]
            backwards[copy] += 1
            if kind == B:
                waiting[copy].append(k)
        ops.append(instance[copy].op(kind, k))
    return tuple(ops)


def order_of(instance: Instance, program: Sequence[Op]) -> list[tuple[int, OpKind]]:
    """Return an order of (copy, kind) without STEP, the reverse of `number`."""
    index = instance.index
    return [(index[op.stage, op.replica], op.kind) for op in program if op.kind != STEP]


def shares_alike(instance: Instance, programs: Sequence[Sequence[Op]]) -> bool:
    """Return True if the micro-batches of each replica are those of the problem."""
    counts = [0] * len(instance)
    for program in programs:
        for copy, kind in order_of(instance, program):
            counts[copy] += kind == F
    return counts == [copy.num_micro_batches for copy in instance.copies]


def timing_of(programs: Sequence[Sequence[Op]], instance: Instance) -> TimedOrders:
    """Simulate programs, each op as early as possible; a link serves one transfer at a time.

    Raises:
        CyclicOrders: ops wait for each other.
    """
    return timed([order_of(instance, program) for program in programs], instance)


def timed(orders: Orders, instance: Instance) -> TimedOrders:
    """Simulate orders of (copy, kind), like `timing_of`."""
    graph = Graph(instance)
    started, sequence, durations_us, fused = _started(orders, graph)
    starts = {graph.nodes[op]: started[op] for op in sequence}
    pairs: list[Pair] = []
    for backward, weight in fused:
        (copy, (_, b)), (_, (_, w)) = graph.nodes[backward], graph.nodes[weight]
        pairs.append(Pair(copy, b, w))
        shorter_us = min(graph.duration_us[backward], durations_us[backward])
        starts[copy, OpIndex(W, w)] = started[backward] + shorter_us
    return TimedOrders(starts, frozenset(pairs))


def value_us(orders: Orders, graph: Graph, objective: Objective) -> int:
    """Return the objective of orders of (copy, kind) if no transfer waits for a buffer.

    Raises:
        CyclicOrders: ops wait for each other.
    """
    instance, copies = graph.instance, range(len(graph.instance))
    starts, _, durations_us, fused = _started(orders, graph)
    ends_with = {weight: backward for backward, weight in fused}
    lasts = (graph.last(copy, W) for copy in copies)
    ends_us = [starts[op] + durations_us[op] for op in (ends_with.get(w, w) for w in lasts)]
    begins_us = [starts[graph.first[copy, F]] for copy in copies]
    places = last_places(instance, orders) if instance.reductions else None
    return objective.value_us(spans_of(instance, begins_us, ends_us, places))


class _Started(NamedTuple):
    """Starts and durations by op; BW counts as its B."""

    starts: list[int]
    sequence: list[int]
    durations_us: list[int]
    fused: list[tuple[int, int]]


def _started(orders: Orders, graph: Graph) -> _Started:
    durations_us = graph.duration_us.copy()
    numbered = [graph.numbered(order) for order in orders]
    fused = [each for _, pairs in numbered for each in pairs]
    for backward, _ in fused:
        durations_us[backward] = graph.instance[graph.nodes[backward][0]].duration_us[BW]
    starts, sequence = graph.start([ops for ops, _ in numbered], durations_us)
    return _Started(starts, sequence, durations_us, fused)


def split(programs: Sequence[Sequence[Op]], instance: Instance) -> Programs:
    """Return programs with B W for BW and without STEP."""
    return tuple(
        number(
            instance,
            [
                (copy, part)
                for copy, kind in order_of(instance, program)
                for part in ((B, W) if kind == BW else (kind,))
            ],
        )
        for program in programs
    )


def keeps_caps(programs: Sequence[Sequence[Op]], instance: Instance) -> bool:
    """Return True if every op fits in memory where it stands."""
    most_in_flight = [instance.most_in_flight(copy) for copy in range(len(instance))]
    for program in programs:
        usage = 0
        in_flight = [0] * len(instance)
        for copy, kind in order_of(instance, program):
            in_flight[copy] += {F: 1, W: 0}.get(kind, -1)
            most = most_in_flight[copy]
            if not instance.allows(copy, kind, usage) or (
                most is not None and in_flight[copy] > most
            ):
                return False
            usage += instance[copy].delta_bytes[kind]
    return True
