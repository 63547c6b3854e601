"""Orders for more micro-batches from one for fewer: what repeats in it, as often as need be.

    rank 0 | F0 F1 F2 B0 [W0 F3 B1] W1 B2 W2 B3 W3       a piece of one micro-batch: on each rank
    rank 1 | F0 B0 [F1 W0 B1] F2 W1 B2 F3 W2 B3 W3       one F, one B and one W, in any order

A rank's memory depends on the order of its ops only. So where a stretch of every rank's order holds
as many F as B and as W of each chunk, memory is after it what it was before, and it may come again.
And if what comes before these stretches needs nothing of what comes after, then no ops wait for
each other in a circle, however often they come. That is so where transfers never wait for a buffer;
of buffers the verifier decides.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from typing import NamedTuple

from synth.objective import Objective
from synth.solve.instance.event_graph import Graph
from synth.solve.instance.instance import BW, SPLIT, B, F, Slot, View, W
from synth.solve.instance.timing import Orders, Starts, timed, value_us

# Of each size so many pieces are tried, those first that take least; then, of the best sizes, some
# of the best pieces with the whole that they make. How many of these are answered.
_TRIED = 60
_SIZES = 3
_WHOLES = 12
_ANSWERED = 4


class Piece(NamedTuple):
    """Of each rank's order, from which place to which it has `size` of every kind and chunk.

    `us` is how long that takes on average over the ranks.
    """

    size: int
    spans: tuple[tuple[int, int], ...]
    us: float

    def repeated(self, orders: Orders, times: int) -> Orders:
        """The orders with so many more of it."""
        return tuple(
            (*order[:end], *tuple(order[begin:end]) * times, *order[end:])
            for order, (begin, end) in zip(orders, self.spans, strict=True)
        )


def longer(view: View, count: int) -> View:
    """The same with so many more micro-batches for each replica."""
    chunks = tuple(
        chunk._replace(
            num_micro_batches=chunk.num_micro_batches + count,
            first=chunk.first + count * chunk.replica,
        )
        for chunk in view.chunks
    )
    return View(chunks, view.room_bytes, view.lives)


class Lengthened(NamedTuple):
    """Orders for more micro-batches, and what they are worth if no transfer waits for a buffer."""

    value_us: int
    orders: Orders


def lengthened(
    view: View,
    orders: Orders,
    count: int,
    objective: Objective,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Lengthened]:
    """The best few found for so many more micro-batches of each replica, best first.

    They keep the caps, in the view's terms, if the orders do.

    Args:
        view: that of the orders.
        count: one at least.
        should_stop: asked between any two that are tried; what is found by then is answered.
    """
    return _Lengthening(view, orders, objective, should_stop).by(count)


class _Place(NamedTuple):
    """Before an op of a rank's order, or after the last: when, and how many of each are done."""

    us: int
    at: int
    done: tuple[int, ...]


class _Lengthening:
    """One order, and the pieces in it."""

    def __init__(
        self, view: View, orders: Orders, objective: Objective, should_stop: Callable[[], bool]
    ) -> None:
        self.view, self.orders = view, orders
        self.objective, self.should_stop = objective, should_stop
        solution = timed(orders, view)
        self.value_us = solution.value_us(view, objective)
        self._rated: dict[int, list[tuple[float, Piece]]] = {}
        self._by: dict[int, list[Lengthened]] = {}
        self._slots = [[(chunk, kind) for chunk in held for kind in SPLIT] for held in view.held]
        self._places = [
            list(self._places_of(rank, solution.starts)) for rank in range(view.num_ranks)
        ]

    def _places_of(self, rank: int, starts: Starts) -> Iterator[_Place]:
        at = {slot: place for place, slot in enumerate(self._slots[rank])}
        done, end_us = [0] * len(at), 0
        for index, (chunk, kind) in enumerate(self.orders[rank]):
            is_fused = kind == BW
            slot = at[chunk, B if is_fused else kind]
            start_us = starts[chunk, Slot(B if is_fused else kind, done[slot])]
            yield _Place(start_us, index, tuple(done))
            done[slot] += 1
            if is_fused:
                done[at[chunk, W]] += 1
            end_us = start_us + self.view[chunk].duration_us[kind]
        yield _Place(end_us, len(self.orders[rank]), tuple(done))

    def by(self, count: int) -> list[Lengthened]:
        """The best few found for so many more."""
        if count not in self._by:
            whole = Graph(longer(self.view, count))
            made = (
                Lengthened(value_us(orders, whole, self.objective), orders)
                for orders in self._made(count)
            )
            self._by[count] = nsmallest(_ANSWERED, made, key=lambda one: one.value_us)
        return self._by[count]

    def _made(self, count: int) -> Iterator[Orders]:
        """Of the best sizes the best pieces, as often as there is room for.

        What is over is added before, with the best smaller pieces, while the order is short.
        """
        sizes = range(1, min(count, self._fewest) + 1)
        best = nsmallest(_SIZES, (rated for size in sizes for rated in self._rate(size)[:1]))
        for size in (piece.size for _, piece in best):
            times, rest = divmod(count, size)
            base = self._begun(rest)
            if base is None:
                continue
            for _, piece in base._rate(size)[:_WHOLES]:
                if self.should_stop():
                    return
                yield piece.repeated(base.orders, times)

    def _begun(self, rest: int) -> "_Lengthening | None":
        """The best order with so many more, if there is one."""
        if rest == 0:
            return self
        found = self.by(rest)
        if not found:
            return None
        view, orders = longer(self.view, rest), found[0].orders
        return _Lengthening(view, orders, self.objective, self.should_stop)

    def _rate(self, size: int) -> list[tuple[float, Piece]]:
        """Pieces of a size, those first whose repetition adds least for each micro-batch."""
        if size not in self._rated:
            graph, rated = Graph(longer(self.view, size)), []
            for piece in nsmallest(_TRIED, self.pieces(size), key=lambda piece: piece.us):
                if self.should_stop():
                    return []
                longer_us = value_us(piece.repeated(self.orders, 1), graph, self.objective)
                rated.append(((longer_us - self.value_us) / size, piece))
            self._rated[size] = sorted(rated)
        return self._rated[size]

    @property
    def _fewest(self) -> int:
        return min(chunk.num_micro_batches for chunk in self.view.chunks)

    def pieces(self, size: int) -> Iterator[Piece]:
        """Those of a size, each from about a moment on."""
        begins = [list(self._begins(places, size)) for places in self._places]
        if not all(begins):
            return
        seen: set[tuple[int, ...]] = set()
        for moment_us in sorted({begin.us for rank in begins for begin, _ in rank}):
            spans = [_nearest(rank, moment_us) for rank in begins]
            key = tuple(begin.at for begin, _ in spans)
            if key not in seen and self._is_closed([begin for begin, _ in spans]):
                us = sum(end.us - begin.us for begin, end in spans) / len(spans)
                yield Piece(size, tuple((begin.at, end.at) for begin, end in spans), us)
            seen.add(key)

    @staticmethod
    def _begins(places: list[_Place], size: int) -> Iterator[tuple[_Place, _Place]]:
        """Of a rank, where pieces begin and end."""
        by_done = {place.done: place for place in places}
        for place in places:
            end = by_done.get(tuple(count + size for count in place.done))
            if end is not None:
                yield place, end

    def _is_closed(self, begins: Iterable[_Place]) -> bool:
        """Whether what is done before needs nothing of what comes after."""
        done = {
            slot: count
            for slots, begin in zip(self._slots, begins, strict=True)
            for slot, count in zip(slots, begin.done, strict=True)
        }
        for index, chunk in enumerate(self.view.chunks):
            below = chunk.below
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
