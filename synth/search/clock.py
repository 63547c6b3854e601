"""The time of a search, by the clock or as granted to its parts."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")


class Clock:
    """The seconds of a search that are left until moments of it.

    A moment is a number of seconds after the beginning. A deterministic search does not read the
    clock: it counts the seconds that it has granted to its parts, whatever they really took.

    Attributes:
        is_deterministic: True if granted seconds count and the clock is ignored.
        granted_s: seconds granted so far.
        least_s: seconds that a part needs at least.
        stop: set from outside to end the search early.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        is_deterministic: bool = False,
        stop: threading.Event | None = None,
        least_s: float = 0.0,
    ) -> None:
        """Begin now."""
        self.limit_s, self.is_deterministic, self.least_s = limit_s, is_deterministic, least_s
        self.stop = stop or threading.Event()
        self.granted_s = 0.0
        self._began = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning, by the clock."""
        return time.monotonic() - self._began

    def grant(self, seconds: float) -> None:
        """Count seconds that a part of the search may take; they matter if it is deterministic."""
        self.granted_s += seconds

    def left_s(self, until_s: float | None = None) -> float:
        """Return the seconds left until a moment, by default the time limit."""
        spent_s = self.granted_s if self.is_deterministic else self.elapsed_s
        return (self.limit_s if until_s is None else until_s) - spent_s

    def is_over(self) -> bool:
        """Return True if the search must end: stopped, or out of time."""
        return self.stop.is_set() or self.left_s() <= 0

    def has_time(self, until_s: float) -> bool:
        """Return True if enough time is left until a moment for another part."""
        return not self.stop.is_set() and self.left_s(until_s) > self.least_s

    def moment_s(self, share: float) -> float:
        """Return the moment at which a share of the remaining time will be over."""
        return self.limit_s - (1 - share) * self.left_s()

    def shared(
        self, items: Sequence[Item], until_s: float | None = None
    ) -> Iterator[tuple[Item, float]]:
        """Share the time until a moment equally among items, in their order.

        Yields:
            Each item with its seconds, 0 at least. What one leaves is for those after it.
        """
        for place, item in enumerate(items):
            yield item, max(0.0, self.left_s(until_s) / (len(items) - place))

    def deadline(self, limit_s: float) -> Callable[[], bool]:
        """Return a function that is true after `limit_s` seconds, or once the search is stopped.

        In a deterministic search only a stop makes it true.
        """
        return partial(self._is_late, time.monotonic() + limit_s)

    def _is_late(self, at_s: float) -> bool:
        is_late = not self.is_deterministic and time.monotonic() > at_s
        return is_late or self.stop.is_set()
