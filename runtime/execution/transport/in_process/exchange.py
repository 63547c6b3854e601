"""Exchanges between threads that are ranks: each completes once every rank has joined."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

Parts = dict[int, Any]
"""By rank."""

Complete = Callable[[Parts], Parts]
"""Computes the result of each rank from the parts of all; raises if the parts do not match."""


class Exchange:
    """One transfer or collective; joining it never blocks, waiting for it does."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = frozenset(ranks)
        self.missing = set(self.ranks)
        self.parts: Parts = {}
        self.outlives: set[int] = set()
        """The ranks whose parts stay valid after they have left."""
        self._results: Parts = {}
        self._error: str | None = None
        self._over = threading.Event()

    def wait(self, rank: int, timeout_s: float) -> Any:
        """Return a rank's result.

        Raises:
            RuntimeError: a rank is gone or did not come in time, or the parts do not match.
        """
        if not self._over.wait(timeout_s):
            late = ", ".join(map(str, sorted(self.missing.copy())))
            raise RuntimeError(f"Timed out after {timeout_s:g} s waiting for rank {late}")
        if self._error is not None:
            raise RuntimeError(self._error)
        return self._results.pop(rank, None)

    @property
    def has_failed(self) -> bool:
        """True if it ended without an exchange."""
        return self._error is not None

    def complete(self, complete: Complete) -> None:
        """Compute the results from the parts; called by the last rank to join."""
        try:
            self._results = complete(self.parts)
        except Exception as error:  # all of its ranks raise it
            self._error = str(error)
        self.parts = {}
        self._over.set()

    def fail(self, error: str) -> None:
        """End the exchange with an error before all ranks have joined."""
        self._error = self._error or error
        self.parts = {}
        self._over.set()


class Exchanges:
    """All exchanges of the ranks of one pipeline.

    A rank's n-th part at a place belongs to the n-th exchange there, as with messages of a link and
    collectives of a group.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[Hashable, int], Exchange] = {}
        self._counts: Counter[tuple[Hashable, int]] = Counter()
        self._gone: set[int] = set()

    def join(
        self,
        place: Hashable,
        ranks: Collection[int],
        rank: int,
        part: Any,
        complete: Complete,
        *,
        outlives: bool = False,
    ) -> Exchange:
        """Join the next exchange at a place with a rank's part.

        Args:
            place: a link or a group.
            part: its contribution; unless it `outlives` the rank, the exchange fails if the rank
                leaves.
            complete: called by the last rank to join.
            outlives: True if the part stays valid after its rank has left.
        """
        with self._lock:
            key = place, self._counts[place, rank]
            self._counts[place, rank] += 1
            exchange = self._open.setdefault(key, Exchange(ranks))
            exchange.parts[rank] = part
            exchange.missing.discard(rank)
            if outlives:
                exchange.outlives.add(rank)
            for gone in sorted(self._gone & ({rank} | exchange.missing)):
                exchange.fail(_gone(gone))
            if exchange.missing:
                return exchange
            del self._open[key]
            if exchange.has_failed:
                return exchange
        exchange.complete(complete)
        return exchange

    def leave(self, rank: int) -> None:
        """Fail all exchanges that wait for a rank, now and later."""
        with self._lock:
            self._gone.add(rank)
            for exchange in self._open.values():
                if rank in exchange.ranks - exchange.outlives:
                    exchange.fail(_gone(rank))

    def left_behind(self) -> list[Hashable]:
        """The places of exchanges that only some of their ranks have joined."""
        with self._lock:
            return [place for place, _ in self._open]


def _gone(rank: int) -> str:
    return f"Connection closed by rank {rank}"
