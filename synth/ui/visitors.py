"""The work that each visitor of a public server has had lately."""

import threading
from collections import OrderedDict, deque
from time import monotonic

from synth.errors import SynthError
from synth.ui.limits import Limits

# Visitors that are remembered; the oldest are forgotten.
_MOST_VISITORS = 10_000


class OverBudget(SynthError):
    """A visitor has had all the work that it gets for now."""


class Visitors:
    """Counts seconds of work by visitor, over the window of the limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._work: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()

    def check(self, visitor: str) -> None:
        """Refuse a visitor who has had enough.

        Raises:
            OverBudget: says what was given, and when there is more.
        """
        if self._limits.work_s is None:
            return
        with self._lock:
            done = self._recent(visitor)
            if sum(seconds for _, seconds in done) >= self._limits.work_s:
                wait_s = done[0][0] + self._limits.window_s - monotonic()
                raise OverBudget(
                    f"this server gives {self._limits.work_s:g} s of work in "
                    f"{self._limits.window_s / 60:g} minutes; try again in {max(1, wait_s):.0f} s, "
                    f"or run `synth ui` on your own machine"
                )

    def charge(self, visitor: str, seconds: float) -> None:
        """Count work that a visitor had."""
        if self._limits.work_s is None:
            return
        with self._lock:
            self._recent(visitor).append((monotonic(), seconds))
            while len(self._work) > _MOST_VISITORS:
                self._work.popitem(last=False)

    def _recent(self, visitor: str) -> deque[tuple[float, float]]:
        done = self._work.setdefault(visitor, deque())
        while done and done[0][0] < monotonic() - self._limits.window_s:
            done.popleft()
        return done
