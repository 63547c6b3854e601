"""Dominance over memory limits: a search under one limit bounds and serves others.

The best time never rises with the limit. So a schedule also serves all larger limits, and a bound
proven under a limit holds under all smaller ones.
"""

import math
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from synth.schedule.files.certificate import Certificate


class Bound(NamedTuple):
    """A lower bound, with its certificate if it has one."""

    lower_bound_us: int
    certificate: Certificate | None


class Known(Protocol):
    """A verified schedule with its time and memory."""

    @property
    def value_us(self) -> int:
        """The time."""

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The peak of each rank."""


Schedules = TypeVar("Schedules", bound=Known)


@dataclass
class CapKnowledge(Generic[Schedules]):
    """Schedules and bounds so far. A limit is one for all ranks; None is no limit."""

    schedules: list[Schedules] = field(default_factory=list)
    bounds: list[tuple[float, Bound]] = field(default_factory=list)

    def add(
        self,
        cap_bytes: int | None,
        found: Schedules | None,
        lower_bound_us: int,
        certificate: Certificate | None = None,
    ) -> None:
        """Add the schedule and the bound of a search under a limit."""
        if found is not None:
            self.schedules.append(found)
        bound = Bound(lower_bound_us, certificate)
        self.bounds.append((math.inf if cap_bytes is None else cap_bytes, bound))

    def best_within(self, cap_bytes: int | None) -> Schedules | None:
        """Return the fastest schedule within a limit; of equals, the one in the least memory."""
        fitting = [f for f in self.schedules if cap_bytes is None or max(f.peak_bytes) <= cap_bytes]
        return min(fitting, key=lambda found: (found.value_us, max(found.peak_bytes)), default=None)

    def least_for(self, target_us: int) -> Schedules | None:
        """Return the schedule in the least memory that meets a target."""
        fast = [found for found in self.schedules if found.value_us <= target_us]
        return min(fast, key=lambda found: (max(found.peak_bytes), found.value_us), default=None)

    def bound_us(self, cap_bytes: int | None) -> int:
        """Return the best bound under a limit; those of larger limits hold too."""
        return self.bound(cap_bytes).lower_bound_us

    def bound(self, cap_bytes: int | None) -> Bound:
        """Return the best bound under a limit with its certificate, which holds there as well."""
        cap = math.inf if cap_bytes is None else cap_bytes
        holding = (bound for at, bound in self.bounds if at >= cap)
        return max(holding, key=lambda bound: bound.lower_bound_us, default=Bound(0, None))
