"""Tracing the curve of time against memory, with few searches where the curve bends most.

Between two neighbouring schedules the curve lies in a rectangle: as wide as the range of limits
that was not searched, and as high as the difference of their times. The next limit is the middle of
the largest rectangle. Between neighbours of equal time there is nothing to find.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from synth.errors import SynthError
from synth.plan.memory_curve.curve_file import (
    TIME_LIMIT,
    FamilyPoint,
    MemoryCurve,
    cap_of,
    closed,
    difference,
    empty_curve,
    knowledge_of,
    time_limit_of_s,
    value_of,
)
from synth.plan.memory_curve.workers import Task, TaskResult, Workers
from synth.plan.search_space import LimitedSpace
from synth.plan.tuning import CURVE
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.result import Baseline

OnPoint = Callable[[MemoryCurve], None]


@dataclass(frozen=True)
class Effort:
    """Effort of a curve: number of points, time limit per point, parallel jobs, workers per job.

    A search stops early when it is proven to be within `gap`.
    """

    points: int = 8
    time_limit_s: float = 30.0
    jobs: int = 1
    workers: int | None = None
    gap: float = 0.005
    seed: int = 0

    def __post_init__(self) -> None:
        if self.points < 2 or self.jobs < 1:
            raise SynthError(
                f"{self.points} points and {self.jobs} jobs given; a curve needs two points at "
                f"least, and one job"
            )


class _Range(NamedTuple):
    """Unsearched limits above `first` and below `end`, with the times at both ends."""

    first: int
    end: int
    first_us: float
    end_us: float

    @property
    def area(self) -> float:
        """Area of the range in bytes times log time: how much the curve may improve in it."""
        return (self.end - self.first) * math.log(max(self.first_us, 1) / max(self.end_us, 1))

    @property
    def middle(self) -> int:
        """The limit to search next in this range."""
        return (self.first + self.end) // 2


def trace(
    profile: Profile,
    space: LimitedSpace,
    effort: Effort | None = None,
    begun: MemoryCurve | None = None,
    on_point: OnPoint | None = None,
    stop: threading.Event | None = None,
) -> MemoryCurve:
    """Trace the curve: the best time and its lower bound under limits that are one for all ranks.

    It begins with the least limit of the serial schedule, and without a limit, which gives the
    limit beyond which nothing improves. Then come limits at which faster published schedules begin
    to fit, and then those where the curve bends.

    Args:
        space: what is searched for each point, without memory limits.
        effort: number of points, time and workers.
        begun: an earlier curve: only missing points are searched, and points again that had
            less time.
        on_point: called in this thread after every search.
        stop: set it, from any thread, to return the curve so far within about a second.

    Raises:
        SynthError: the space has memory limits, or none that can vary, or a problem without a
            partition; or `begun` is of another problem.
    """
    if space.problem.caps_bytes is not None:
        raise SynthError("the problem has memory limits, which a curve varies; give none")
    curve = empty_curve(profile, space)
    if begun is not None:
        differs = difference(begun, curve, profile)
        if differs is not None:
            raise SynthError(f"what was begun is the curve of another problem: {differs}")
        curve = begun.replace(points=closed(begun.points))
    tracing = _Tracing(profile, space, effort or Effort(), curve, on_point)
    return tracing.run(stop or threading.Event())


class _Tracing:
    """Tracing in progress: the curve so far, limits being searched, and the choice of the next."""

    def __init__(
        self,
        profile: Profile,
        space: LimitedSpace,
        effort: Effort,
        curve: MemoryCurve,
        on_point: OnPoint | None,
    ) -> None:
        self.profile, self.space, self.effort = profile, space, effort
        self.curve, self.on_point = curve, on_point
        self.pending: list[int | None] = []

    def run(self, stop: threading.Event) -> MemoryCurve:
        if self._next() == []:
            return self.curve
        stopping = False
        with Workers(self.effort.jobs) as workers:
            while workers.has_busy or (not stop.is_set() and self._next()):
                while workers.has_free and not stop.is_set() and (caps := self._next()):
                    self.pending.append(caps[0])
                    workers.start(self._task(caps[0]))
                for outcome in workers.outcomes(CURVE.poll_s):
                    self._take(outcome, is_stopped=stop.is_set())
                if stop.is_set() and not stopping:
                    stopping = True
                    workers.stop()
        return self.curve

    # Choice of the next limit

    def _next(self) -> list[int | None]:
        """Return the limit to search next (None: no limit), as a list that may be empty."""
        caps = [cap_of(plan) for plan in self.curve.points]
        if not self.curve.has_end and None not in self.pending:
            return [None]
        least = self.curve.least_cap_bytes
        if least not in caps and least not in self.pending:
            return [least]
        again = [cap for plan in self.curve.points if not self._is_done(plan, cap := cap_of(plan))]
        if again:
            return [again[0]]
        if len(set(caps) | set(self.pending)) >= self.effort.points or not self.curve.has_end:
            return []
        published = self._published_caps()
        if published:
            return [published[0]]
        widest = max(self._ranges(), key=lambda found: found.area, default=None)
        return [] if widest is None or widest.area <= 0 else [widest.middle]

    def _published_caps(self) -> list[int | None]:
        """Return limits at which published schedules beat the curve, worst first."""
        better = []
        for family in self.curve.families:
            cap, plans = family.peak_bytes, self.curve.points
            there_us = [value_of(plan) for plan in plans if max(plan.claim.peak_bytes) <= cap]
            beaten = any(_beats(other, family) for other in self.curve.families)
            asked = cap in self.pending or cap in map(cap_of, plans)
            if beaten or asked or not there_us or family.value_us >= min(there_us):
                continue
            better.append((family.value_us / min(there_us), cap))
        return [cap for _, cap in sorted(better)]

    def _is_done(self, plan: Plan, cap: int) -> bool:
        whole = plan.claim.stopped_by != StoppedBy.INTERRUPT
        had_time = whole and time_limit_of_s(plan) >= self.effort.time_limit_s
        return had_time or plan.claim.gap <= self.effort.gap or cap in self.pending

    def _ranges(self) -> list[_Range]:
        """Yield ranges of limits, wide enough to search, in which the curve may still improve."""
        points = self.curve.points
        finest = max(2, round((cap_of(points[-1]) - cap_of(points[0])) * CURVE.finest_share))
        ranges = []
        for plan, after in pairwise(points):
            # A plan serves from its peak on, so the range between that and its limit is known.
            end = min(cap_of(after), max(after.claim.peak_bytes))
            whole = _Range(cap_of(plan), end, value_of(plan), value_of(after))
            ranges += self._split(whole)
        return [found for found in ranges if found.end - found.first > finest]

    def _split(self, whole: _Range) -> list[_Range]:
        """Split a range at the limits being searched, as if each point lay on the diagonal."""
        parts, first, first_us = [], whole.first, whole.first_us
        pending = (cap for cap in self.pending if cap is not None)
        for cap in sorted(cap for cap in pending if whole.first < cap < whole.end):
            share = (cap - whole.first) / (whole.end - whole.first)
            middle_us = whole.first_us + share * (whole.end_us - whole.first_us)
            parts.append(_Range(first, cap, first_us, middle_us))
            first, first_us = cap, middle_us
        return [*parts, _Range(first, whole.end, first_us, whole.end_us)]

    def _task(self, cap: int | None) -> Task:
        known, effort = knowledge_of(self.curve.points), self.effort
        claim = known.best_within(cap)
        best = next((plan for plan in self.curve.points if plan.claim is claim), None)
        options = SolveOptions(
            time_limit_s=effort.time_limit_s,
            gap=effort.gap,
            workers=effort.workers,
            seed=effort.seed,
            hint=None if best is None else best.schedule(),
            tries_less_memory=False,  # the curve has points of its own there
        )
        space = self.space.within(cap, None if best is None else best.partition)
        return Task(space, options, cap, known.bound_us(cap))

    # Results

    def _take(self, outcome: TaskResult, *, is_stopped: bool) -> None:
        """Add a point; without a limit, at the limit from which on its schedule fits.

        A search that was stopped before its first schedule adds none.
        """
        cap, claim, schedule = outcome.task.cap_bytes, outcome.claim, outcome.schedule
        self.pending.remove(cap)
        if schedule is None and is_stopped:
            return
        if schedule is None or claim is None:
            raise SynthError(
                outcome.message or f"nothing was found with a memory limit of {cap} bytes"
            )
        if cap is None:
            families = tuple(self._family(r) for r in outcome.baselines if r.keeps_saved)
            whole = outcome.stopped_by != StoppedBy.INTERRUPT
            self.curve = self.curve.replace(families=families, has_end=whole)
        at = max(*claim.peak_bytes, self.curve.least_cap_bytes) if cap is None else cap
        plan = Plan.of(
            self.profile,
            outcome.partition or self.curve.partition,
            schedule,
            claim=claim.replace(bound_holds_for=self.curve.bound_scope),
            caps_bytes=(at,) * schedule.num_ranks,
            arguments={TIME_LIMIT: f"{outcome.task.options.time_limit_s:g}"},
        )
        self.curve = self.curve.replace(points=closed([*self.curve.points, plan]))
        if self.on_point is not None:
            self.on_point(self.curve)

    def _family(self, baseline: Baseline) -> FamilyPoint:
        value_us = self.space.problem.objective.value_us(baseline)
        return FamilyPoint(
            name=baseline.name, value_us=value_us, peak_bytes=max(baseline.peak_bytes)
        )


def _beats(one: FamilyPoint, other: FamilyPoint) -> bool:
    """Return True if one plan dominates the other in time and memory."""
    mine, others = (one.value_us, one.peak_bytes), (other.value_us, other.peak_bytes)
    return mine != others and all(a <= b for a, b in zip(mine, others, strict=True))
