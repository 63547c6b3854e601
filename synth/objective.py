"""The objective by which schedules are judged: makespan, period, or a weighted sum of both."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol, Self

KNOWN = "makespan, period, or iterations:K, the time of K iterations, such as iterations:8"

# More would overflow the solvers' 64-bit integers before it changed any order.
_MOST_ITERATIONS = 10_000

_ITERATIONS = re.compile(r"iterations:([1-9]\d{0,9})")


class BoundScope(StrEnum):
    """The partitions and placements for which a lower bound holds."""

    PARTITION = "this partition"
    ALL = "all partitions"
    CANDIDATES = "candidates"

    @property
    def words(self) -> str:
        """The scope as words of a sentence."""
        return "all candidates that were tried" if self is BoundScope.CANDIDATES else self.value


class HasSpans(Protocol):
    """An object with both figures of a schedule: a timeline, a baseline, a claim."""

    @property
    def makespan_us(self) -> int:
        """From the first op of an iteration to its last, over all ranks."""

    @property
    def period_us(self) -> int:
        """Max over ranks of (end of last op − start of first op)."""


class Spans(NamedTuple):
    """Both figures alone."""

    makespan_us: int
    period_us: int

    @classmethod
    def of_ranks(cls, ranks_us: Iterable[tuple[int, int]]) -> Self:
        """Make both from the start and end of each rank, in microseconds from the first op."""
        begun_and_ended = list(ranks_us)
        makespan_us = max(end for _, end in begun_and_ended)
        return cls(makespan_us, max(end - begin for begin, end in begun_and_ended))

    @classmethod
    def most(cls, spans: Iterable["Spans"]) -> Self:
        """The largest makespan and the largest period of several."""
        return cls(*map(max, zip(*spans, strict=True)))

    @classmethod
    def least(cls, spans: Iterable["Spans"]) -> Self:
        """The smallest makespan and the smallest period of several."""
        return cls(*map(min, zip(*spans, strict=True)))


@dataclass(frozen=True)
class Objective:
    """A number of makespans plus a number of periods, in whole microseconds; less is better.

    K iterations back to back take at most a makespan and K − 1 periods: `Objective(1, K - 1)`. Per
    iteration that is (1 − w) · makespan + w · period with w = 1 − 1/K. The weights are whole
    numbers, so that values and bounds are exact.
    """

    makespans: int
    periods: int

    MAKESPAN: ClassVar["Objective"]
    PERIOD: ClassVar["Objective"]

    def __post_init__(self) -> None:
        is_period = (self.makespans, self.periods) == (0, 1)
        if not is_period and (self.makespans != 1 or not 0 <= self.periods < _MOST_ITERATIONS):
            raise ValueError(f"{self.makespans} makespans and {self.periods} periods")

    @classmethod
    def of_iterations(cls, count: int) -> "Objective":
        """The longest time of `count` iterations back to back."""
        return cls(1, count - 1)

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Parse the form that `str` gives.

        Raises:
            ValueError: it is none of `KNOWN`, or has too many iterations.
        """
        if text in (_MAKESPAN, _PERIOD):
            return cls.MAKESPAN if text == _MAKESPAN else cls.PERIOD
        match = _ITERATIONS.fullmatch(text)
        if match is None or int(match[1]) > _MOST_ITERATIONS:
            raise ValueError(f"{text!r} is not an objective; known: {KNOWN}")
        return cls.of_iterations(int(match[1]))

    def __str__(self) -> str:
        """The form on the command line and in files."""
        if self == Objective.MAKESPAN:
            return _MAKESPAN
        return _PERIOD if self == Objective.PERIOD else f"iterations:{self.iterations}"

    @property
    def words(self) -> str:
        """The form in a sentence."""
        return f"time of {self.iterations} iterations" if self.is_sum else str(self)

    @property
    def iterations(self) -> int:
        """The number of iterations in the time of the value."""
        return self.makespans + self.periods

    @property
    def is_sum(self) -> bool:
        """True if both makespan and period count."""
        return self.makespans > 0 and self.periods > 0

    def value_us(self, spans: HasSpans) -> int:
        """The weighted sum."""
        return self.makespans * spans.makespan_us + self.periods * spans.period_us

    def iterations_per_s(self, spans: HasSpans) -> float | None:
        """Iterations per second; None: they take no time."""
        value_us = self.value_us(spans)
        return 1e6 * self.iterations / value_us if value_us else None

    def bubble_rate(self, spans: HasSpans, work_us: float) -> float:
        """1 − work / (the value for each iteration).

        That is the bubble rate with the largest work of a rank, and with the mean work of all ranks
        the share of the time in which a rank is idle on average (the mean idle share), which counts
        imbalance too.

        Args:
            work_us: in one iteration.
        """
        value_us = self.value_us(spans)
        return 1 - self.iterations * work_us / value_us if value_us else 0.0

    def over_ideal(self, spans: HasSpans, ideal_us: float) -> float:
        """(The value for each iteration) / ideal − 1; orders schedules as the value does.

        Args:
            ideal_us: see `Profile.ideal_us`.
        """
        return self.value_us(spans) / (self.iterations * ideal_us) - 1 if ideal_us else 0.0


_MAKESPAN, _PERIOD = "makespan", "period"
Objective.MAKESPAN, Objective.PERIOD = Objective(1, 0), Objective(0, 1)
