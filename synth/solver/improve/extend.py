"""Extending a schedule to more micro-batches by repeating its steady-state segment.

    rank 0 | F0 F1 F2 B0 [W0 F3 B1] W1 B2 W2 B3 W3       a segment of one micro-batch: on each rank
    rank 1 | F0 B0 [F1 W0 B1] F2 W1 B2 F3 W2 B3 W3       one F, one B and one W, in any order

A rank's memory depends only on the order of its ops. If a stretch of every rank's order holds as
many F as B and as W of each stage copy, the usage after it is the usage before it, so it can be
repeated. If the ops before these stretches need nothing from the ops after them, no repetition
closes a cycle of ops that wait for each other. This assumes that transfers never wait for a buffer;
with buffers the verifier decides.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import NamedTuple

from synth.objective import Objective
from synth.solver.instance.event_graph import Graph
from synth.solver.instance.instance import BW, SPLIT, B, F, Instance, OpIndex, W
from synth.solver.instance.timing import Orders, ScoredOrders, Starts, timed, value_us
from synth.solver.tuning import EXTEND


class Segment(NamedTuple):
    """A stretch of each rank's order with `size` ops of every kind and stage copy.

    `spans` are its first place and the place after it by rank, `us` its mean duration over the
    ranks.
    """

    size: int
    spans: tuple[tuple[int, int], ...]
    us: float

    def repeated(self, orders: Orders, times: int) -> Orders:
        """Return the orders with further repetitions of it."""
        return tuple(
            (*order[:end], *tuple(order[begin:end]) * times, *order[end:])
            for order, (begin, end) in zip(orders, self.spans, strict=True)
        )


def extended_instance(instance: Instance, count: int) -> Instance:
    """Return the instance with `count` more micro-batches for each replica."""
    copies = tuple(
        copy._replace(
            num_micro_batches=copy.num_micro_batches + count,
            first=copy.first + count * copy.replica,
        )
        for copy in instance.copies
    )
    return Instance(copies, instance.headroom_bytes, instance.lifetimes)


def extend(
    instance: Instance,
    orders: Orders,
    count: int,
    objective: Objective,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[ScoredOrders]:
    """Return the best few orders with `count` more micro-batches of each replica, best first.

    They keep the instance's caps if the given orders do.

    Args:
        count: at least one.
        should_stop: polled between trials; the orders found by then are returned.
    """
    return _Extension(instance, orders, objective, should_stop).by(count)


class _Place(NamedTuple):
    """A place in a rank's order: its time, its index, and the ops of each type done before it."""

    us: int
    at: int
    done: tuple[int, ...]


class _Extension:
    """One order and its segments."""

    def __init__(
        self,
        instance: Instance,
        orders: Orders,
        objective: Objective,
        should_stop: Callable[[], bool],
    ) -> None:
        self.instance, self.orders = instance, orders
        self.objective, self.should_stop = objective, should_stop
        timing = timed(orders, instance)
        self.value_us = timing.value_us(instance, objective)
        self._rated: dict[int, list[tuple[float, Segment]]] = {}
        self._by: dict[int, list[ScoredOrders]] = {}
        self._op_types = [
            [(copy, kind) for copy in held for kind in SPLIT] for held in instance.held
        ]
        self._places = [
            list(self._places_of(rank, timing.starts)) for rank in range(instance.num_ranks)
        ]

    def _places_of(self, rank: int, starts: Starts) -> Iterator[_Place]:
        at = {op_type: place for place, op_type in enumerate(self._op_types[rank])}
        done, end_us = [0] * len(at), 0
        for index, (copy, kind) in enumerate(self.orders[rank]):
            is_fused = kind == BW
            op_type = at[copy, B if is_fused else kind]
            start_us = starts[copy, OpIndex(B if is_fused else kind, done[op_type])]
            yield _Place(start_us, index, tuple(done))
            done[op_type] += 1
            if is_fused:
                done[at[copy, W]] += 1
            end_us = start_us + self.instance[copy].duration_us[kind]
        yield _Place(end_us, len(self.orders[rank]), tuple(done))

    def by(self, count: int) -> list[ScoredOrders]:
        """Return the best few orders with `count` more micro-batches."""
        if count not in self._by:
            whole = Graph(extended_instance(self.instance, count))
            made = (
                ScoredOrders(orders, value_us(orders, whole, self.objective))
                for orders in self._made(count)
            )
            self._by[count] = nsmallest(EXTEND.returned, made, key=lambda one: one.value_us)
        return self._by[count]

    def _made(self, count: int) -> Iterator[Orders]:
        """Yield orders with the best segments of the best sizes, repeated as often as possible.

        The remainder is added first, with the best smaller segments, while the order is short.
        """
        sizes = range(1, min(count, self._fewest) + 1)
        best = nsmallest(EXTEND.sizes, (rated for size in sizes for rated in self._rate(size)[:1]))
        for size in (segment.size for _, segment in best):
            times, rest = divmod(count, size)
            base = self._begun(rest)
            if base is None:
                continue
            for _, segment in base._rate(size)[: EXTEND.segments_per_size]:
                if self.should_stop():
                    return
                yield segment.repeated(base.orders, times)

    def _begun(self, rest: int) -> "_Extension | None":
        """Return the best order with the remainder added, if there is one."""
        if rest == 0:
            return self
        found = self.by(rest)
        if not found:
            return None
        instance, orders = extended_instance(self.instance, rest), found[0].orders
        return _Extension(instance, orders, self.objective, self.should_stop)

    def _rate(self, size: int) -> list[tuple[float, Segment]]:
        """Return segments of a size by the time that each adds per micro-batch, least first."""
        if size not in self._rated:
            graph, rated = Graph(extended_instance(self.instance, size)), []
            for segment in nsmallest(
                EXTEND.rated_segments, self.segments(size), key=lambda segment: segment.us
            ):
                if self.should_stop():
                    return []
                longer_us = value_us(segment.repeated(self.orders, 1), graph, self.objective)
                rated.append(((longer_us - self.value_us) / size, segment))
            self._rated[size] = sorted(rated)
        return self._rated[size]

    @property
    def _fewest(self) -> int:
        return min(copy.num_micro_batches for copy in self.instance.copies)

    def segments(self, size: int) -> Iterator[Segment]:
        """Yield the segments of a size, each beginning at about one moment on all ranks."""
        begins = [list(self._begins(places, size)) for places in self._places]
        if not all(begins):
            return
        seen: set[tuple[int, ...]] = set()
        for moment_us in sorted({begin.us for rank in begins for begin, _ in rank}):
            spans = [_nearest(rank, moment_us) for rank in begins]
            key = tuple(begin.at for begin, _ in spans)
            if key not in seen and self._is_closed([begin for begin, _ in spans]):
                us = sum(end.us - begin.us for begin, end in spans) / len(spans)
                yield Segment(size, tuple((begin.at, end.at) for begin, end in spans), us)
            seen.add(key)

    @staticmethod
    def _begins(places: list[_Place], size: int) -> Iterator[tuple[_Place, _Place]]:
        """Yield the starts and ends of segments on one rank."""
        by_done = {place.done: place for place in places}
        for place in places:
            end = by_done.get(tuple(count + size for count in place.done))
            if end is not None:
                yield place, end

    def _is_closed(self, begins: Iterable[_Place]) -> bool:
        """Return True if the ops before the segment need nothing from the ops after its start."""
        done = {
            op_type: count
            for op_types, begin in zip(self._op_types, begins, strict=True)
            for op_type, count in zip(op_types, begin.done, strict=True)
        }
        for index, copy in enumerate(self.instance.copies):
            below = copy.below
            if below is None:
                if done[index, B] > done[index, F]:
                    return False
            elif done[below, F] > done[index, F] or done[index, B] > done[below, B]:
                return False
        return True


def _nearest(begins: list[tuple[_Place, _Place]], us: int) -> tuple[_Place, _Place]:
    after = bisect_left(begins, us, key=lambda span: span[0].us)
    around = begins[max(0, after - 1) : after + 1]
    return min(around, key=lambda span: abs(span[0].us - us))
