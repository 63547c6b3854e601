"""The time that a schedule has to meet, and what is proven of the memory that this takes."""

import math
from dataclasses import dataclass

from synth.errors import SynthError
from synth.solver.result import MemoryProof

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


@dataclass(frozen=True)
class TargetProof(MemoryProof):
    """The least memory limit under which a time is met.

    Attributes:
        target_us: the time to meet.
        fastest_us: the best time found under any limit.
        bound_us: the best lower bound of the time without a limit.
    """

    target_us: int
    fastest_us: int | None
    bound_us: int
