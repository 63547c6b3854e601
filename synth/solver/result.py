"""The answer of a search: schedule, bound, baselines, and the reason why it ended."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from synth.objective import BoundScope
from synth.schedule.files.certificate import Certificate
from synth.schedule.model import Schedule
from synth.schedule.simulate import Timeline
from synth.search.outcome import StoppedBy, relative_gap
from synth.solver.evaluate.evaluate import EvaluatedSchedule
from synth.solver.problem import Problem


@dataclass(frozen=True)
class Baseline:
    """A published schedule on the costs of its partition.

    Attributes:
        work_us: the largest work of a rank, all that is done twice counted twice.
        mean_work_us: the mean work of a rank, counted likewise.
        fits: True if it keeps the caps.
        keeps_saved: True if the values that F saves stay where they are. Bounds of the search do
            not hold for schedules that rebuild or move them.
        offloads: True if they move to the host's memory or to another rank.
        partition: layers of each stage, if not those of the result.
    """

    name: str
    makespan_us: int
    period_us: int
    work_us: int
    peak_bytes: tuple[int, ...]
    fits: bool
    keeps_saved: bool = True
    mean_work_us: float = 0.0
    offloads: bool = False
    partition: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        line: Timeline,
        peak_bytes: tuple[int, ...],
        *,
        fits: bool,
        keeps_saved: bool = True,
    ) -> "Baseline":
        """Return the figures of a simulated schedule."""
        return cls(
            name,
            line.makespan_us,
            line.period_us,
            max(line.work_us),
            peak_bytes,
            fits,
            keeps_saved,
            line.mean_work_us,
            line.lowered.schedule.offloads,
        )

    def is_in(self, others: Iterable["Baseline"]) -> bool:
        """True if one of some others differs from it in the name alone."""
        return any(replace(self, name=other.name) == other for other in others)


@dataclass(frozen=True)
class SteadyBaseline:
    """A published schedule without a flush on the same costs; `us` is None if it is never full."""

    name: str
    us: float | None
    delay: int
    versions: int
    peak_bytes: tuple[int, ...]
    fits: bool


@dataclass(frozen=True)
class SteadyProof:
    """The time of a micro-batch of a pipeline without a flush while it is full, and its bounds.

    Attributes:
        lower_bound_us: the lower bound of all schedules of the same rule whose stages take
            micro-batches in order.
        repeating_us: a bound of those whose order repeats with every micro-batch, by modulo models.
        baselines: the published schedules of the same rule.
    """

    us: float
    lower_bound_us: float
    repeating_us: float
    baselines: tuple[SteadyBaseline, ...] = ()

    @property
    def gap(self) -> float:
        """(us − lower bound) / us."""
        return (self.us - self.lower_bound_us) / self.us if self.us else 0.0


@dataclass(frozen=True)
class MemoryProof:
    """The least memory limit found, one for all ranks, under which a target is met.

    Attributes:
        cap_bytes: the limit; None: no schedule that meets the target was found.
        not_below_bytes: a limit below which no schedule meets the target; None: none is proven.
        explanation: a sentence about the limit.
    """

    cap_bytes: int | None
    not_below_bytes: int | None
    explanation: str

    @property
    def gap(self) -> float | None:
        """(found − proven) / found."""
        cap, least = self.cap_bytes, self.not_below_bytes
        return None if cap is None or least is None else max(0.0, (cap - least) / cap)

    @property
    def rank_key(self) -> tuple[float, float]:
        """The key that orders proofs, best first: the limit, then its bound."""
        cap = math.inf if self.cap_bytes is None else self.cap_bytes
        return cap, -(self.not_below_bytes or 0)


@dataclass(frozen=True)
class Incumbent:
    """A step of progress: a better verified schedule, or a better bound of the same one."""

    problem: Problem
    elapsed_s: float
    schedule: Schedule
    timeline: Timeline
    value_us: int
    lower_bound_us: int
    found_by: str
    peak_bytes: tuple[int, ...]
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None
    steady: SteadyProof | None = None
    memory: MemoryProof | None = None

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return relative_gap(self.value_us, self.lower_bound_us)

    @property
    def rank_key(self) -> tuple[float, ...]:
        """The key that orders incumbents, best first.

        They are ordered by the memory limit, if that is minimized, then by time, by the bound of
        the time, and by the highest peak.
        """
        us: float = self.value_us
        bound_us: float = self.lower_bound_us
        if self.steady is not None:
            us, bound_us = self.steady.us, self.steady.lower_bound_us
        limit = () if self.memory is None else self.memory.rank_key
        return *limit, us, -bound_us, max(self.peak_bytes)

    @property
    def _is_proven(self) -> bool:
        proof = self.memory or self.steady or self
        return proof.gap == 0

    def as_result(self, wall_s: float, stopped_by: StoppedBy) -> "Result":
        """Return the result of a search that ends here, for a reason unless it is proven."""
        names = {field.name for field in fields(self)} - {"elapsed_s"}
        own = {name: getattr(self, name) for name in names}
        stopped_by = StoppedBy.OPTIMAL if self._is_proven else stopped_by
        return Result(**own, stopped_by=stopped_by, baselines=(), wall_s=wall_s)


@dataclass(frozen=True)
class Result:
    """The best schedule found, and what is proven about it.

    Every value is an exact simulation of a verified schedule. Without a schedule, `schedule`,
    `timeline`, `value_us`, `gap` and `found_by` are None, and `message` says why. `certificate` is
    that of the bound, if it has one. `steady` is of searches without a flush, and `memory` of those
    for the least memory limit. `waiting_share` is that of the search's time in which it had no
    processor; None: not known, or nothing depends on it.
    """

    problem: Problem
    schedule: Schedule | None
    timeline: Timeline | None
    value_us: int | None
    lower_bound_us: int
    peak_bytes: tuple[int, ...] | None
    found_by: str | None
    stopped_by: StoppedBy
    baselines: tuple[Baseline, ...]
    wall_s: float
    message: str | None = None
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None
    steady: SteadyProof | None = None
    memory: MemoryProof | None = None
    waiting_share: float | None = None

    @property
    def gap(self) -> float | None:
        """(value − bound) / value."""
        return None if self.value_us is None else relative_gap(self.value_us, self.lower_bound_us)

    @classmethod
    def of(cls, problem: Problem, found: EvaluatedSchedule | None, **others: Any) -> "Result":
        """Make a result of the schedule found, if there is one, and of the other fields."""
        names = [field.name for field in fields(EvaluatedSchedule)]
        figures: dict[str, Any] = {name: getattr(found, name, None) for name in names}
        return cls(problem=problem, **figures, **others)

    @classmethod
    def without_schedule(
        cls, problem: Problem, stopped_by: StoppedBy, message: str, bound_us: int = 0
    ) -> "Result":
        """Make the result of a search that took no time and found nothing.

        Args:
            stopped_by: why the search ended.
            message: why there is no schedule.
            bound_us: the lower bound.
        """
        return cls.of(
            problem,
            None,
            lower_bound_us=bound_us,
            stopped_by=stopped_by,
            baselines=(),
            wall_s=0.0,
            message=message,
        )

    def as_incumbent(self) -> Incumbent | None:
        """Return the schedule as a step of progress; None if there is none."""
        if self.schedule is None:
            return None
        names = {field.name for field in fields(Incumbent)} - {"elapsed_s"}
        return Incumbent(elapsed_s=self.wall_s, **{name: getattr(self, name) for name in names})


def judged_result(problem: Problem, found: EvaluatedSchedule, least_us: int) -> Result:
    """Return the result of a search that found just this schedule, and the bound `least_us`."""
    return Result.of(
        problem,
        found,
        lower_bound_us=min(least_us, found.value_us),
        stopped_by=StoppedBy.TIME_LIMIT,
        baselines=(),
        wall_s=0.0,
    )
