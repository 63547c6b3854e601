"""The time limit of a request, counted from its start, including reading and partitioning."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace

# Start of the running command line, as of `time.monotonic`; unset in other programs.
BEGAN: ContextVar[float] = ContextVar("BEGAN")

# Share of the limit for a search for partitions; the rest is for schedules.
_PARTITION_SHARE = 0.3

# Seconds of processor time that the partitions of all placements get at any load and limit.
_PARTITION_WORK_S = 0.5

# Seconds per op to compare a schedule with a known one and to write it; negligible up to this many
# ops.
_ANSWER_S = 8e-6
_FEW_OPS = 20_000


@dataclass(frozen=True)
class Deadline:
    """Start of a command and its wall-clock limit in seconds; None: the limit is deterministic."""

    began: float
    limit_s: float | None

    @classmethod
    def of(cls, limit_s: float, *, is_clock: bool = True) -> "Deadline":
        """Return the limit asked for, from the start of the command line or from now on."""
        return cls(BEGAN.get(time.monotonic()), limit_s if is_clock else None)

    @classmethod
    def unlimited(cls) -> "Deadline":
        """Return a deadline without wall-clock limit."""
        return cls(BEGAN.get(time.monotonic()), None)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self.began

    def left_of(self, limit_s: float) -> float:
        """Return the seconds left for the search; the limit itself if that is deterministic."""
        return limit_s if self.limit_s is None else max(0.0, self.limit_s - self.elapsed_s)

    def until(self, times: int = 1) -> float | None:
        """Return the moment (`time.monotonic`) at which some limits are over; None: never."""
        return None if self.limit_s is None else self.began + times * self.limit_s

    def without_answer(self, num_ops: int) -> "Deadline":
        """Return an earlier deadline that leaves time to write a large answer."""
        if self.limit_s is None:
            return self
        answer_s = _ANSWER_S * max(0, num_ops - _FEW_OPS)
        return replace(self, limit_s=self.limit_s - min(answer_s, self.limit_s / 2))

    def for_partitions(self, part: int = 1, of: int = 1) -> Callable[[], bool]:
        """Return a function that is true once the time for a placement's partition is over.

        At any load it is false until some work has been done since it was first asked.
        """
        if self.limit_s is None:
            return lambda: False
        most_s = _PARTITION_SHARE * self.limit_s * part / of
        work_s, began_s = _PARTITION_WORK_S / of, None

        def is_over() -> bool:
            nonlocal began_s
            began_s = time.thread_time() if began_s is None else began_s
            return self.elapsed_s > most_s and time.thread_time() - began_s > work_s

        return is_over
