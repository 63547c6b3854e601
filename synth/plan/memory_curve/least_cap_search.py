"""Bisection for the least memory limit under which a target time is met, with a lower bound.

Under each limit tried, the solver either finds a schedule that meets the target, or proves a bound
above the target, or runs out of its share of the time. A schedule lowers the least limit known to
its peak. A proof raises the lower bound, because a bound holds under all smaller limits too.
Otherwise the limit stays open, and the search continues above and below it.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from synth.errors import SynthError
from synth.plan.memory_curve.cap_knowledge import CapKnowledge, ConditionalStop, KnownSchedule
from synth.plan.memory_curve.cap_search import CapSearch, cap_search
from synth.plan.memory_curve.curve_file import check_partitions_searchable
from synth.plan.memory_curve.least_cap import LeastCap
from synth.plan.memory_curve.target import NOT_REPEATABLE, TimeTarget
from synth.plan.recompute.choice import Choice
from synth.plan.tuning import LEAST_CAP
from synth.plan.weight_passing.candidates import WeightCandidates
from synth.profile import Profile
from synth.search.clock import Clock
from synth.search.outcome import StoppedBy, reason_of_end
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Incumbent, Result

OnProgress = Callable[[LeastCap], None]


def least_cap(
    problem: Problem,
    target: TimeTarget,
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    recompute: Choice = (),
    profile: Profile | None = None,
    candidates: tuple[WeightCandidates, Profile] | None = None,
) -> LeastCap:
    """Minimize the memory limit, one for all ranks, under which a schedule meets a target.

    Args:
        problem: without memory limits; its partition is kept.
        target: the target of the problem's objective.
        options: `time_limit_s` is for the whole; `gap` is the relative gap in memory, between the
            limit found and its lower bound, at which the search stops.
        on_progress: called in this thread whenever one of the two gets better.
        stop: set it, from any thread, to get the best so far within about a second.
        recompute: the stages that recompute; None: chosen under each limit.
        profile: the profile of the problem's costs: search the best partition under each limit,
            with proofs for all partitions. None: keep the partition.
        candidates: the candidates of `--weights` to choose from under each limit, with the profile
            of their costs; the problem is that of the first one.

    Raises:
        SynthError: the problem has memory limits; or the search is to be deterministic, which it is
            not; or partitions cannot be searched for (`check_partitions_searchable`).
    """
    if problem.caps_bytes is not None:
        raise SynthError("the problem has memory limits; their minimum is searched without any")
    options = options or SolveOptions()
    if options.deterministic:
        raise SynthError(NOT_REPEATABLE)
    stop = stop or threading.Event()
    if profile is not None:
        check_partitions_searchable(problem, recompute)
    search = cap_search(problem, recompute, profile, candidates)
    return _Bisection(search, target, options, on_progress, stop).run()


class _Bisection:
    """Bisection over memory limits: results so far, and the next limit to try."""

    def __init__(
        self,
        search: CapSearch,
        target: TimeTarget,
        options: SolveOptions,
        on_progress: OnProgress | None,
        stop: threading.Event,
    ) -> None:
        self.search, self.options = search, options
        self.clock = Clock(options.time_limit_s, stop=stop)
        # A target relative to the bound changes whenever the bound without a limit rises.
        self.target, self.target_us = target, target.time_us or 0
        self.on_progress = on_progress
        self.knowledge = CapKnowledge()
        self.breakpoints = search.breakpoints()
        self.not_below = search.limits_bytes()[0]
        self.open: list[int] = []
        self.share, self.num_looks = LEAST_CAP.cap_share_of_left, 0
        self.baselines: tuple[Baseline, ...] = ()
        self.baselines_partition = search.problem.partition

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
        """Search without limit for a schedule that meets the target, and for the bound it may refer
        to.
        """
        if self.target.time_us is None:
            self._solve(None, LEAST_CAP.free_share_of_left, self.clock.stop, None)
            self._tell()
        else:
            self._look(None, LEAST_CAP.free_share_of_left)
        while self._least() is None and not self._finished():
            self._look(None, 1.0)

    def _published_caps(self) -> list[int]:
        """Yield the least memory limit of the published schedules that meet the target, if any."""
        objective = self.search.problem.objective
        peaks = [
            max(baseline.peak_bytes)
            for baseline in self.baselines
            if baseline.keeps_saved and objective.value_us(baseline) <= self.target_us
        ]
        least = self._least()
        return [] if not peaks or least is None or min(peaks) >= least else [min(peaks)]

    def _next_cap(self) -> int:
        """Return the middle of the widest range without open limits, or else an open one again."""
        least = self._least()
        assert least is not None
        last = least - 1
        self.open = [cap for cap in self.open if self.not_below <= cap <= last]
        first, end = self._widest(last)
        if end - first <= max(1, (last - self.not_below) // LEAST_CAP.ranges):
            self.open.clear()
            self.share = min(1.0, self.share * LEAST_CAP.more_time)
            first, end = self.not_below, last
        return min(end, self._largest_like((first + end) // 2))

    def _largest_like(self, cap: int) -> int:
        """Return the largest limit that bounds cannot distinguish from this one."""
        return cap if self.breakpoints is None else self.breakpoints.largest_like(cap)

    def _widest(self, last: int) -> tuple[int, int]:
        """Return the wider of the ranges below and above all open limits."""
        if not self.open:
            return self.not_below, last
        below, above = (self.not_below, min(self.open) - 1), (max(self.open) + 1, last)
        if self._largest_like(self.not_below) >= min(self.open):
            return above  # bounds do not distinguish the limits below from the open one
        return max(below, above, key=lambda ends: ends[1] - ends[0])

    def _look(self, cap: int | None, share: float) -> None:
        """Search under a memory limit until the target is met or proven impossible."""

        def is_decided(now: Incumbent) -> bool:
            # A bound of some partitions or candidates decides nothing.
            bound_us = now.lower_bound_us if self.search.holds(now) else 0
            target_us = self.target_us
            if cap is None:
                target_us = max(target_us, self.target.in_us(bound_us))
            return now.value_us <= target_us or bound_us > target_us

        enough = ConditionalStop(self.clock.stop, is_decided)
        result = self._solve(cap, share, enough, enough)
        is_impossible = result.stopped_by == StoppedBy.INFEASIBLE and self.search.proves_infeasible
        missed = is_impossible or self.knowledge.bound_us(cap) > self.target_us
        if cap is not None and missed:
            self.not_below = max(self.not_below, cap + 1)
        elif cap is not None and (result.value_us is None or result.value_us > self.target_us):
            self.open.append(cap)
        self._tell()

    def _solve(
        self, cap: int | None, share: float, stop: threading.Event, enough: ConditionalStop | None
    ) -> Result:
        left_s = self._left_s()
        limit_s = min(left_s, max(LEAST_CAP.shortest_s, share * left_s))
        best = self.knowledge.best_within(cap)
        # A limit that is searched again is searched with another seed.
        seed, self.num_looks = self.options.seed + self.num_looks, self.num_looks + 1
        hint = self.options.hint if cap is None else None
        options = replace(self.options, time_limit_s=limit_s, gap=0.0, hint=hint, seed=seed)
        watch = None if enough is None else enough.watch
        result = self.search.solve(cap, best, options, watch, stop)
        self.knowledge.add(
            cap, KnownSchedule.of_result(result), result.lower_bound_us, result.certificate
        )
        if cap is None:
            self.target_us = self.target.in_us(self.knowledge.bound_us(None))
            self.baselines, self.baselines_partition = result.baselines, result.problem.partition
            self._keep_hint()
        return result

    def _keep_hint(self) -> None:
        """Keep the hint as a result: it may be slower, but in less memory."""
        schedule = self.options.hint
        kept = None if schedule is None else evaluate(self.search.problem, schedule, "hint")
        if kept is not None:
            self.knowledge.schedules.append(
                KnownSchedule.of(
                    kept.schedule, kept.timeline, kept.value_us, kept.peak_bytes, kept.found_by
                )
            )

    # State of the search

    def _least(self) -> int | None:
        found = self.knowledge.least_for(self.target_us)
        return None if found is None else found.peak

    def _left_s(self) -> float:
        return max(0.0, self.clock.left_s())

    def _finished(self) -> bool:
        return self.clock.is_over() or self._is_hopeless() or self._is_close()

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
        problem = self.search.problem if found is None else self.search.problem_of(found)
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
            wall_s=self.clock.elapsed_s,
            bound_scope=self.search.scope,
            certificate=bound.certificate,
        )

    def _reason(self) -> StoppedBy:
        return reason_of_end(
            self._least(),
            self.not_below,
            self.options.gap,
            is_interrupted=self.clock.stop.is_set(),
            is_exhausted=False,
            is_infeasible=self._is_hopeless(),
        )
