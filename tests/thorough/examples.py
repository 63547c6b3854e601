"""Examples from consecutive seeds, for a check's share of the time that all checks have together.

The environment says how long (`SYNTH_THOROUGH_SECONDS`) and where to begin (`SYNTH_SEED`). Each
example has a seed of its own, so the seed that a failure names is the first one of its repetition.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS, SEED = "SYNTH_THOROUGH_SECONDS", "SYNTH_SEED"
DEFAULT_SECONDS = 300.0

# No example may take as long.
LONGEST_S = 600


class TookTooLong(AssertionError):
    """An example did not end."""


class Examples:
    """The examples of one check."""

    def __init__(self, share: float) -> None:
        """Begin to count the time; `share` is of all checks that are run."""
        self.seconds = share * float(os.environ.get(SECONDS, DEFAULT_SECONDS))
        given = os.environ.get(SEED)
        self.first_seed = int(given) if given else random.SystemRandom().randrange(10**9)
        self.count = 0
        self._began = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self._began + self.seconds - time.monotonic()

    def each(self, check: Callable[[random.Random], object]) -> None:
        """Check example after example, one at least, until the next would end too late."""
        longest_s = 0.0
        while not self.count or self.left_s > longest_s:
            began, seed = time.monotonic(), self.first_seed + self.count
            with _named(seed), _limited(LONGEST_S):
                check(random.Random(seed))
            longest_s = max(longest_s, time.monotonic() - began)
            self.count += 1


@contextmanager
def _named(seed: int) -> Iterator[None]:
    """Tell with a failure how to repeat it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"to repeat it: {SEED}={seed}, and the same test")
        raise


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Kill a command that takes longer."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"an example takes more than {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
