"""The time of a race between candidates, by the clock or as allotted."""

import threading
import time
from collections.abc import Callable
from functools import partial

from synth.plan.tuning import RACE
from synth.solver.options import SolveOptions


class RaceClock:
    """The seconds of a race that are left until moments of it.

    A moment is the number of seconds after the beginning. A deterministic race does not read the
    clock: it counts the seconds that it has granted to its parts, whatever they really took.

    Attributes:
        granted_s: seconds granted so far, which count in a deterministic race.
    """

    def __init__(self, options: SolveOptions, stop: threading.Event) -> None:
        self.limit_s, self.is_deterministic = options.time_limit_s, options.deterministic
        self._stop, self._began = stop, time.monotonic()
        self.granted_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning, by the clock."""
        return time.monotonic() - self._began

    def grant(self, seconds: float) -> None:
        """Count seconds that a part of the race may take."""
        self.granted_s += seconds

    def left_s(self, until_s: float) -> float:
        """Return the seconds left until a moment."""
        return until_s - (self.granted_s if self.is_deterministic else self.elapsed_s)

    def moment_s(self, share: float) -> float:
        """Return the moment at which a share of the remaining time will be over."""
        return self.limit_s - (1 - share) * self.left_s(self.limit_s)

    def has_time(self, until_s: float) -> bool:
        """Return True if enough time is left until a moment for another trial."""
        return (
            not self._stop.is_set()
            and self.left_s(until_s) > RACE.least_share_of_limit * self.limit_s
        )

    def deadline(self, limit_s: float) -> Callable[[], bool]:
        """Return a function that is true after `limit_s` seconds, or once the race is stopped."""
        return partial(self._is_late, time.monotonic() + limit_s)

    def _is_late(self, at_s: float) -> bool:
        is_late = not self.is_deterministic and time.monotonic() > at_s
        return is_late or self._stop.is_set()
