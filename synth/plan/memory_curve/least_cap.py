"""The least memory in which a target time is met: bisection over caps, with a proof from below.

Under every cap that is tried the solver either finds a schedule that meets the target, or proves a
bound above the target, or runs out of its share of the time. The first lowers the least cap known,
to the peak of the schedule; the second raises what is proven, because the bound holds under all
smaller caps too; the third leaves a cap open, and the search goes on above it and below it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from synth.certificate import Certificate
from synth.errors import SynthError
from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.choose.trials import solve_best_of
from synth.plan.memory_curve.cap_breakpoints import CapBreakpoints
from synth.plan.memory_curve.cap_knowledge import CapKnowledge, Enough, Found
from synth.plan.memory_curve.curve_file import check_can_be_sought
from synth.plan.memory_curve.target import NOT_REPEATABLE, TimeTarget
from synth.plan.partition.balance import smallest_limit_of_any
from synth.plan.partition.bounds import with_partition
from synth.plan.partition.stage_table import StageTable
from synth.plan.recompute.choice import Choice, limits_bytes, solve_with
from synth.plan.recompute.repartition import repartitioned
from synth.profile import Profile
from synth.schedule.verify import verify
from synth.solve.evaluate.evaluate import evaluate
from synth.solve.options import SolveOptions
from synth.solve.problem import Problem
from synth.solve.result import Baseline, Incumbent, Result, StoppedBy
from synth.units import format_us

# Shares of the time that is left: for the problem without a cap, and for each cap tried.
_FREE_SHARE = 0.25
_CAP_SHARE = 0.2

# When a range of caps without an open one is narrower than this part of all that are undecided,
# open ones are looked at again, with so many times the share.
_RANGES = 16
_MORE_TIME = 2.0

# Less is not worth a search: the published schedules alone take so long.
_SHORTEST_S = 0.2


@dataclass(frozen=True)
class LeastCap:
    """The least memory limit, one for all ranks, under which a target is met, as far as known.

    No schedule meets it with less than `not_below_bytes`: proven. `found` meets it, and needs
    `cap_bytes`; `lower_bound_us` holds under that cap, by `certificate`. `fastest_us` is the best
    time found under any cap, `bound_us` the best bound without a cap. What is proven, of memory and
    of time, holds for `bound_scope`.
    """

    problem: Problem
    target_us: int
    not_below_bytes: int
    found: Found | None
    lower_bound_us: int
    fastest_us: int | None
    bound_us: int
    stopped_by: StoppedBy
    baselines: tuple[Baseline, ...]
    wall_s: float
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None

    @property
    def cap_bytes(self) -> int | None:
        """The least cap found."""
        return None if self.found is None else self.found.peak

    @property
    def gap(self) -> float | None:
        """(found − proven) / found."""
        cap = self.cap_bytes
        return None if cap is None else max(0.0, (cap - self.not_below_bytes) / cap)

    def result(self) -> Result | None:
        """The schedule found as the answer of a search under its cap, simulated again."""
        if self.found is None:
            return None
        found, cap = self.found, self.found.peak
        problem = replace(self.problem, caps_bytes=(cap,) * self.problem.num_ranks)
        return Result(
            problem=problem,
            schedule=found.schedule,
            timeline=verify(found.schedule, problem.costs, problem.caps_bytes)[1],
            value_us=found.value_us,
            lower_bound_us=self.lower_bound_us,
            peak_bytes=found.peak_bytes,
            found_by=found.found_by,
            stopped_by=self.stopped_by,
            baselines=tuple(replace(r, fits=max(r.peak_bytes) <= cap) for r in self.baselines),
            wall_s=self.wall_s,
            bound_scope=self.bound_scope,
            certificate=self.certificate,
        )

    @property
    def message(self) -> str | None:
        """Why there is no schedule, if there is none."""
        if self.found is not None:
            return None
        objective, target = self.problem.objective.words, format_us(self.target_us)
        if self.stopped_by == StoppedBy.INFEASIBLE:
            return (
                f"no schedule has a {objective} of {target} ({self.target_us} µs) or less, however "
                f"much memory there is: the lower bound is {self.bound_us} µs; give a --target of "
                f"that at least, other ranks or another placement"
            )
        best = "none" if self.fastest_us is None else f"{self.fastest_us} µs"
        return (
            f"no schedule with a {objective} of {target} ({self.target_us} µs) or less was found "
            f"in the time given, with any memory: the best is {best}, the lower bound "
            f"{self.bound_us} µs; give more time or a larger --target"
        )


OnProgress = Callable[[LeastCap], None]


def least_cap(
    problem: Problem,
    target: TimeTarget,
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    recompute: Choice = (),
    profile: Profile | None = None,
) -> LeastCap:
    """Find the least cap, one for all ranks, under which some schedule meets a target.

    Args:
        problem: without caps; its partition is kept.
        target: of the problem's objective.
        options: `time_limit_s` is for the whole; `gap` is that between the cap found and the cap
            proven at which the search may stop.
        on_progress: called in this thread whenever one of the two gets better.
        stop: set it, from any thread, to get the best so far within about a second.
        recompute: the stages that do; None: as many of the first as serve best.
        profile: what the problem's costs were cut from: then under each cap the partition that
            serves best is sought, and what is proven holds for all of them. None: it is kept.

    Raises:
        SynthError: the problem has caps; or the search should be deterministic, which it is not; or
            partitions are sought where they cannot be (`frontier.check_can_be_sought`).
    """
    if problem.caps_bytes is not None:
        raise SynthError("the problem has caps already; the least cap is sought without any")
    options = options or SolveOptions()
    if options.deterministic:
        raise SynthError(NOT_REPEATABLE)
    stop = stop or threading.Event()
    if profile is not None:
        check_can_be_sought(problem, recompute)
    return _Bisection(
        problem,
        target,
        options=options,
        on_progress=on_progress,
        stop=stop,
        recompute=recompute,
        profile=profile,
    ).run()


class _Bisection:
    """Bisection over memory limits: results so far, and the next limit to try."""

    def __init__(
        self,
        problem: Problem,
        target: TimeTarget,
        options: SolveOptions,
        on_progress: OnProgress | None,
        stop: threading.Event,
        recompute: Choice,
        profile: Profile | None,
    ) -> None:
        self.problem, self.options, self.stop = problem, options, stop
        self.recompute, self.profile = recompute, profile
        self.table = None if profile is None else StageTable(profile)
        # A share of the bound is set anew whenever the bound without a cap rises.
        self.target, self.target_us = target, target.time_us or 0
        self.on_progress = on_progress
        self.began = time.monotonic()
        self.knowledge = CapKnowledge()
        # What R leaves in memory is no sum of effects, and partitions have levels of their own: so
        # then every cap is looked at for itself.
        self.breakpoints = CapBreakpoints(problem) if recompute == () and profile is None else None
        self.not_below = self._least_need()
        self.open: list[int] = []
        self.share, self.num_looks = _CAP_SHARE, 0
        self.baselines: tuple[Baseline, ...] = ()
        self.baselines_partition = problem.partition

    def _least_need(self) -> int:
        """No cap below can be kept."""
        if self.profile is None:
            return limits_bytes(self.problem, self.recompute)[0]
        return smallest_limit_of_any(self.profile, self.problem.num_ranks)

    def run(self) -> LeastCap:
        self._look_without_cap()
        for cap in self._published_caps():
            if not self._finished():
                self._look(cap, self.share)
        while not self._finished():
            self._look(self._next_cap(), self.share)
        return self._answer()

    # Steps

    def _look_without_cap(self) -> None:
        """Find any schedule that meets the target; a share of the bound is known only then."""
        if self.target.time_us is None:
            self._solve(None, _FREE_SHARE, self.stop, None)
            self._tell()
        else:
            self._look(None, _FREE_SHARE)
        while self._least() is None and not self._finished():
            self._look(None, 1.0)

    def _published_caps(self) -> list[int]:
        """Yield the least memory limit of the published schedules that meet the target, if any."""
        objective = self.problem.objective
        peaks = [
            max(baseline.peak_bytes)
            for baseline in self.baselines
            if baseline.keeps_saved and objective.value_us(baseline) <= self.target_us
        ]
        least = self._least()
        return [] if not peaks or least is None or min(peaks) >= least else [min(peaks)]

    def _next_cap(self) -> int:
        """The middle of the widest range of caps that has no open one; else an open one again."""
        least = self._least()
        assert least is not None
        last = least - 1
        self.open = [cap for cap in self.open if self.not_below <= cap <= last]
        first, end = self._widest(last)
        if end - first <= max(1, (last - self.not_below) // _RANGES):
            self.open.clear()
            self.share = min(1.0, self.share * _MORE_TIME)
            first, end = self.not_below, last
        return min(end, self._largest_like((first + end) // 2))

    def _largest_like(self, cap: int) -> int:
        """The largest cap of which bounds cannot tell this one."""
        return cap if self.breakpoints is None else self.breakpoints.largest_like(cap)

    def _widest(self, last: int) -> tuple[int, int]:
        """The wider of the ranges below and above all open caps."""
        if not self.open:
            return self.not_below, last
        below, above = (self.not_below, min(self.open) - 1), (max(self.open) + 1, last)
        if self._largest_like(self.not_below) >= min(self.open):
            return above  # for bounds, all caps below are like the open one
        return max(below, above, key=lambda ends: ends[1] - ends[0])

    def _look(self, cap: int | None, share: float) -> None:
        """Search under a cap until the target is met, or proven out of reach."""

        def is_decided(now: Incumbent) -> bool:
            # Where partitions are sought, a bound of those tried so far decides nothing.
            holds = self.profile is None or now.bound_scope == BoundScope.ALL
            bound_us, target_us = now.lower_bound_us if holds else 0, self.target_us
            if cap is None:
                target_us = max(target_us, self.target.in_us(bound_us))
            return now.value_us <= target_us or bound_us > target_us

        enough = Enough(self.stop, is_decided)
        result = self._solve(cap, share, enough, enough)
        # What does not fit in the partitions tried may fit in another one.
        is_impossible = result.stopped_by == StoppedBy.INFEASIBLE and self.profile is None
        missed = is_impossible or self.knowledge.bound_us(cap) > self.target_us
        if cap is not None and missed:
            self.not_below = max(self.not_below, cap + 1)
        elif cap is not None and (result.value_us is None or result.value_us > self.target_us):
            self.open.append(cap)
        self._tell()

    def _solve(
        self, cap: int | None, share: float, stop: threading.Event, enough: Enough | None
    ) -> Result:
        left_s = self._left_s()
        limit_s = min(left_s, max(_SHORTEST_S, share * left_s))
        caps = None if cap is None else (cap,) * self.problem.num_ranks
        best = self.knowledge.best_within(cap)
        # A cap that is looked at again is looked at in another way.
        seed, self.num_looks = self.options.seed + self.num_looks, self.num_looks + 1
        options = replace(self.options, time_limit_s=limit_s, gap=0.0, hint=None, seed=seed)
        capped = replace(self.problem, caps_bytes=caps)
        if self.profile is None:
            hint = best.schedule if best else self.options.hint if cap is None else None
            watch = enough.watch if enough else None
            result = solve_with(capped, self.recompute, replace(options, hint=hint), watch, stop)
        else:
            result = self._solve_any(self.profile, capped, best, options, stop, enough)
        self.knowledge.add(cap, Found.of_result(result), result.lower_bound_us, result.certificate)
        if cap is None:
            self.target_us = self.target.in_us(self.knowledge.bound_us(None))
            self.baselines, self.baselines_partition = result.baselines, result.problem.partition
            self._keep_hint()
        return result

    def _solve_any(
        self,
        profile: Profile,
        capped: Problem,
        best: Found | None,
        options: SolveOptions,
        stop: threading.Event,
        enough: Enough | None,
    ) -> Result:
        """In the partition that serves best, beginning with that of the best plan that fits."""
        start = repartitioned(profile, capped, ()) if best is None else self._cut_as(best, capped)
        watch = None if enough is None else enough.watch
        return solve_best_of(
            [Candidate("", start)],
            profile,
            Partitioning.SEARCHED,
            options,
            lambda problem: watch,
            stop,
        ).result

    def _cut_as(self, found: Found, problem: Problem) -> Problem:
        """The problem in the partition of what was found."""
        if self.table is None or found.partition in (None, problem.partition):
            return problem
        return with_partition(self.table, problem, found.partition)

    def _keep_hint(self) -> None:
        """A slower hint may be one in less memory."""
        schedule = self.options.hint
        kept = None if schedule is None else evaluate(self.problem, schedule, "hint")
        if kept is not None:
            self.knowledge.schedules.append(
                Found.of(
                    kept.schedule, kept.timeline, kept.value_us, kept.peak_bytes, kept.found_by
                )
            )

    # Where the search stands

    def _least(self) -> int | None:
        found = self.knowledge.least_for(self.target_us)
        return None if found is None else found.peak

    def _left_s(self) -> float:
        return max(0.0, self.options.time_limit_s - (time.monotonic() - self.began))

    def _finished(self) -> bool:
        return self.stop.is_set() or self._left_s() <= 0 or self._is_hopeless() or self._is_close()

    def _is_hopeless(self) -> bool:
        return self.knowledge.bound_us(None) > self.target_us

    def _is_close(self) -> bool:
        least = self._least()
        return least is not None and least - self.not_below <= self.options.gap * least

    def _tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self._answer())

    def _answer(self) -> LeastCap:
        found, fastest = self.knowledge.least_for(self.target_us), self.knowledge.best_within(None)
        problem = self.problem if found is None else self._cut_as(found, self.problem)
        bound_us = self.knowledge.bound_us(None)
        bound = self.knowledge.bound(None if found is None else found.peak)
        return LeastCap(
            problem,
            self.target_us,
            not_below_bytes=self.not_below,
            found=found,
            lower_bound_us=bound.lower_bound_us,
            fastest_us=fastest.value_us if fastest else None,
            bound_us=bound_us,
            stopped_by=self._reason(),
            baselines=self.baselines if problem.partition == self.baselines_partition else (),
            wall_s=time.monotonic() - self.began,
            bound_scope=BoundScope.PARTITION if self.profile is None else BoundScope.ALL,
            certificate=bound.certificate,
        )

    def _reason(self) -> StoppedBy:
        least = self._least()
        if self._is_hopeless():
            return StoppedBy.INFEASIBLE
        if least is not None and least <= self.not_below:
            return StoppedBy.OPTIMAL
        if self.stop.is_set():
            return StoppedBy.INTERRUPT
        return StoppedBy.GAP if self._is_close() else StoppedBy.TIME_LIMIT
