"""The time that a schedule has to meet."""

import math
from dataclasses import dataclass

from synth.errors import SynthError

NOT_REPEATABLE = (
    "the least memory limit is bisected by the clock, so it cannot be deterministic; leave "
    "§deterministic out, or give a §mem_limit"
)


@dataclass(frozen=True)
class TimeTarget:
    """A time to meet: in microseconds, or relative to the lower bound without a memory limit."""

    time_us: int | None = None
    share_of_bound: float | None = None

    def __post_init__(self) -> None:
        if (self.time_us is None) == (self.share_of_bound is None):
            raise SynthError("a target is either a time or a share of the lower bound; give one")

    def in_us(self, bound_us: int) -> int:
        """Return the target as a time, given the lower bound without a memory limit."""
        if self.time_us is not None:
            return self.time_us
        assert self.share_of_bound is not None
        return math.floor(self.share_of_bound * bound_us)
