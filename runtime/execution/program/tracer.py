"""Traced steps of a run: their choice and their logs."""

from collections import deque
from typing import NamedTuple

from synth.schedule.measured.rank_log import RankLog

from ..base.clock import OpClock

# The number of traced steps that are kept, the last ones of a long run.
MOST_STEPS = 64


class LoggedStep(NamedTuple):
    """One traced step as one rank logged it; `step_us` is its whole time, on the host's clock."""

    step: int
    step_us: float
    log: RankLog


class Tracer:
    """Switches a clock on for one step in `every`."""

    def __init__(self, clock: OpClock, every: int = 1) -> None:
        self.steps: deque[LoggedStep] = deque(maxlen=MOST_STEPS)
        self._clock = clock
        self._every = every
        self._seen = 0
        clock.recording = False

    def begin(self, *, countable: bool = True) -> None:
        """Begin a step; one that is not countable (warm-up, measuring memory) is not traced."""
        self._clock.recording = countable and self._seen % self._every == 0
        self._seen += countable

    def end(self, step: int, step_us: float) -> None:
        """End a step, and keep its log if it was traced."""
        if self._clock.recording:
            self.steps.append(LoggedStep(step, step_us, self._clock.log()))
