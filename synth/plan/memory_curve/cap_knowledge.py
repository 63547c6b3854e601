"""Dominance over memory limits: a search under one limit bounds and serves others.

The best time never rises with the cap. So a schedule serves every cap that it keeps, the larger
ones too; and a bound proven under a cap holds under all smaller ones.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.certificate import Certificate
from synth.schedule.model import Schedule
from synth.schedule.simulate import Timeline
from synth.solve.result import Incumbent, Result


@dataclass(frozen=True)
class Found:
    """A verified schedule and what it is worth; one cap for all ranks must be `peak` at least.

    `partition` is the one it is for, where several are looked at.
    """

    schedule: Schedule
    makespan_us: int
    period_us: int
    value_us: int
    peak_bytes: tuple[int, ...]
    found_by: str
    partition: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        timeline: Timeline,
        value_us: int,
        peak_bytes: tuple[int, ...],
        found_by: str,
    ) -> "Found":
        """Keep of a search's answer what is worth keeping."""
        return cls(
            schedule, timeline.makespan_us, timeline.period_us, value_us, peak_bytes, found_by
        )

    @classmethod
    def of_result(cls, result: Result) -> "Found | None":
        """The schedule of a result, if there is one."""
        if result.schedule is None or result.timeline is None:
            return None
        assert result.value_us is not None and result.found_by is not None
        assert result.peak_bytes is not None
        kept = cls.of(
            result.schedule, result.timeline, result.value_us, result.peak_bytes, result.found_by
        )
        return replace(kept, partition=result.problem.partition)

    @property
    def peak(self) -> int:
        """The highest peak of all ranks."""
        return max(self.peak_bytes)


class Bound(NamedTuple):
    """A lower bound, with its certificate if it has one."""

    lower_bound_us: int
    certificate: Certificate | None


@dataclass
class CapKnowledge:
    """Schedules and bounds so far; a cap is one for all ranks, None is no cap."""

    schedules: list[Found] = field(default_factory=list)
    bounds: list[tuple[float, Bound]] = field(default_factory=list)

    def add(
        self,
        cap_bytes: int | None,
        found: Found | None,
        lower_bound_us: int,
        certificate: Certificate | None = None,
    ) -> None:
        """Take in what a search under a cap found and proved."""
        if found is not None:
            self.schedules.append(found)
        bound = Bound(lower_bound_us, certificate)
        self.bounds.append((math.inf if cap_bytes is None else cap_bytes, bound))

    def best_within(self, cap_bytes: int | None) -> Found | None:
        """The fastest schedule that keeps a cap; of equally fast ones that in the least memory."""
        fitting = [f for f in self.schedules if cap_bytes is None or f.peak <= cap_bytes]
        return min(fitting, key=lambda found: (found.value_us, found.peak), default=None)

    def least_for(self, target_us: int) -> Found | None:
        """The schedule in the least memory that takes no longer than a target."""
        fast = [found for found in self.schedules if found.value_us <= target_us]
        return min(fast, key=lambda found: (found.peak, found.value_us), default=None)

    def bound_us(self, cap_bytes: int | None) -> int:
        """The best bound that is proven under a cap: those of larger caps hold too."""
        return self.bound(cap_bytes).lower_bound_us

    def bound(self, cap_bytes: int | None) -> Bound:
        """The same, with its certificate: what it names proves it under the smaller cap too."""
        cap = math.inf if cap_bytes is None else cap_bytes
        holding = (bound for at, bound in self.bounds if at >= cap)
        return max(holding, key=lambda bound: bound.lower_bound_us, default=Bound(0, None))


class Enough(threading.Event):
    """A stop that also comes when a search has shown what was to be shown.

    Args:
        stop: somebody else's.
        is_shown: asked of every incumbent of the search.
    """

    def __init__(self, stop: threading.Event, is_shown: Callable[[Incumbent], bool]) -> None:
        super().__init__()
        self._stop, self._is_shown = stop, is_shown

    def watch(self, incumbent: Incumbent) -> None:
        """Look at an improvement."""
        if self._is_shown(incumbent):
            self.set()

    def is_set(self) -> bool:
        """Return True if stopped, for either reason."""
        return super().is_set() or self._stop.is_set()
