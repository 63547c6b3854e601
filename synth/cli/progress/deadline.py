"""The time limit of a command, counted from its beginning: reading and cutting count as well."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from synth.cli import BEGAN
from synth.units import parse_seconds

# The part of the limit after which a search for partitions ends: the rest is for schedules.
_PARTITION_SHARE = 0.3

# Verifying a schedule once more, and writing it out, takes so long per op. Up to so many ops that
# is a moment.
_ANSWER_S = 15e-6
_FEW_OPS = 20_000


@dataclass(frozen=True)
class Deadline:
    """The beginning of a command, and the seconds that it may take; None: its limit is no clock."""

    began: float
    limit_s: float | None

    @classmethod
    def of(cls, time_limit: str, *, is_clock: bool = True) -> "Deadline":
        """The limit that was asked for, since the command line began, or from now on.

        Raises:
            SynthError: it is no time.
        """
        limit_s = parse_seconds(time_limit)
        return cls(BEGAN.get(time.monotonic()), limit_s if is_clock else None)

    @classmethod
    def unlimited(cls) -> "Deadline":
        """No limit by the clock."""
        return cls(BEGAN.get(time.monotonic()), None)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self.began

    def left_of(self, limit_s: float) -> float:
        """The seconds that are left for the search; the limit itself if that is no clock."""
        return limit_s if self.limit_s is None else max(0.0, self.limit_s - self.elapsed_s)

    def until(self, times: int = 1) -> float | None:
        """The time of `time.monotonic` at which so many limits are over; None: it is no clock."""
        return None if self.limit_s is None else self.began + times * self.limit_s

    def without_answer(self, num_ops: int) -> "Deadline":
        """The same less what writing a large answer takes, which half of the limit is left of."""
        if self.limit_s is None:
            return self
        answer_s = _ANSWER_S * max(0, num_ops - _FEW_OPS)
        return replace(self, limit_s=self.limit_s - min(answer_s, self.limit_s / 2))

    def for_partitions(self, part: int = 1, of: int = 1) -> Callable[[], bool]:
        """Tell when the time for partitions is over, or for that of one placement of several."""
        if self.limit_s is None:
            return lambda: False
        most_s = _PARTITION_SHARE * self.limit_s * part / of
        return lambda: self.elapsed_s > most_s
