"""The work that each visitor of a public server has had lately."""

import ipaddress
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from synth.errors import SynthError
from synth.ui.limits import Limits

# Visitors that are remembered; the oldest are forgotten.
_MOST_VISITORS = 10_000


def counted_address(host: str) -> str:
    """Return what visitors of an address are counted by: of IPv6 its network of 64 bits."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))


class OverBudget(SynthError):
    """A visitor has had all the work that it gets for now."""


class Visitors:
    """Counts seconds of work by visitor, over the window of the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._work: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()
        self._begun: list[tuple[str, float]] = []  # visitors and beginnings of what runs

    def check(self, visitor: str) -> None:
        """Refuse a visitor who has had enough.

        Raises:
            OverBudget: says what was given, and when there is more.
        """
        if self._limits.work_s is None:
            return
        with self._lock:
            now, done = monotonic(), self._recent(visitor)
            running_s = sum(now - began for each, began in self._begun if each == visitor)
            if running_s + sum(seconds for _, seconds in done) >= self._limits.work_s:
                first = done[0][0] if done else now
                wait_s = first + self._limits.window_s - now
                raise OverBudget(
                    f"this server gives {self._limits.work_s:g} s of work in "
                    f"{self._limits.window_s / 60:g} minutes; try again in {max(1, wait_s):.0f} s, "
                    f"or run `synth ui` on your own machine"
                )

    @contextmanager
    def charged(self, visitor: str) -> Iterator[None]:
        """Count the time of some work of a visitor, from its beginning on."""
        begun = (visitor, monotonic())
        with self._lock:
            self._begun.append(begun)
        try:
            yield
        finally:
            with self._lock:
                self._begun.remove(begun)
                now = monotonic()
                self._recent(visitor).append((now, now - begun[1]))
                while len(self._work) > _MOST_VISITORS:
                    self._work.popitem(last=False)

    def _recent(self, visitor: str) -> deque[tuple[float, float]]:
        done = self._work.setdefault(visitor, deque())
        self._work.move_to_end(visitor)
        while done and done[0][0] < monotonic() - self._limits.window_s:
            done.popleft()
        return done
