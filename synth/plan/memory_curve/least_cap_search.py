"""Bisection for the least memory limit under which a target time is met, with a lower bound.

Under each limit tried, the solver either finds a schedule that meets the target, or proves a bound
above the target, or runs out of its share of the time. A schedule lowers the least limit known to
its peak. A proof raises the lower bound, because a bound holds under all smaller limits too.
Otherwise the limit stays open, and the search continues above and below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.errors import SynthError
from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Ranking, SearchWatch
from synth.plan.memory_curve.cap_breakpoints import CapBreakpoints
from synth.plan.memory_curve.cap_knowledge import CapKnowledge
from synth.plan.memory_curve.target import NOT_REPEATABLE, TimeTarget
from synth.plan.memory_curve.target_proof import TargetProof
from synth.plan.search_space import LimitedSpace, OneCandidate, SearchSpace
from synth.plan.tuning import LEAST_CAP
from synth.plan.weight_passing.choice import WeightCandidate
from synth.search.best_so_far import BestSoFar
from synth.search.clock import Clock
from synth.search.conditional_stop import ConditionalStop
from synth.search.outcome import StoppedBy, reason_of_end
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import SolveOptions
from synth.solver.result import Baseline, Incumbent, Result
from synth.solver.watch import UNWATCHED, SolveWatch
from synth.units import format_bytes_both, format_us


@dataclass(frozen=True)
class LeastForTime(SearchSpace):
    """The schedules of a space that meet a target, of which the least memory is searched.

    Attributes:
        space: without memory limits.
    """

    space: LimitedSpace
    target: TimeTarget

    @property
    def all_candidates(self) -> Sequence[Candidate | WeightCandidate]:
        """The candidates of the space."""
        return self.space.all_candidates

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Minimize the memory limit; see `least_cap`."""
        return Ranking(least_cap(self.space, self.target, options, watch.of_one), ())


def least_cap(
    space: LimitedSpace,
    target: TimeTarget,
    options: SolveOptions | None = None,
    watch: SolveWatch = UNWATCHED,
) -> Result:
    """Minimize the memory limit, one for all ranks, under which a schedule meets a target.

    Args:
        space: without memory limits. Proofs, of memory and of time, hold for its `bound_scope`.
        target: the target of the objective.
        options: `time_limit_s` is for the whole; `gap` is the relative gap in memory, between the
            limit found and its lower bound, at which the search stops.
        watch: told of every schedule in less memory, and of better bounds.

    Returns:
        The schedule found under the limit that it needs, with a `TargetProof` as `memory`.

    Raises:
        SynthError: the space has memory limits, or none that can vary; or the search is to be
            deterministic, which it is not.
    """
    if space.problem.caps_bytes is not None:
        raise SynthError("the problem has memory limits; their minimum is searched without any")
    options = options or SolveOptions()
    if options.deterministic:
        raise SynthError(NOT_REPEATABLE)
    return _Bisection(space, target, options, watch).run()


class _Bisection:
    """Bisection over memory limits: results so far, and the next limit to try."""

    def __init__(
        self, space: LimitedSpace, target: TimeTarget, options: SolveOptions, watch: SolveWatch
    ) -> None:
        # Searches begin from the best schedule of all lower limits.
        self.space, self.options = space, replace(options, tries_less_memory=False)
        self.clock = Clock(options.time_limit_s, stop=watch.stop)
        # A target relative to the bound changes whenever the bound without a limit rises.
        self.target, self.target_us = target, target.time_us or 0
        tell = watch.on_improvement
        self.so_far = None if tell is None else BestSoFar(tell)
        self.knowledge = CapKnowledge[Incumbent]()
        # With R, or several candidates, every limit may differ from its neighbours.
        is_plain = isinstance(space, OneCandidate) and space.candidate.choice == ()
        self.breakpoints = CapBreakpoints(space.problem) if is_plain else None
        self.not_below = space.limits_bytes()[0]
        self.open: list[int] = []
        self.share, self.num_looks = LEAST_CAP.cap_share_of_left, 0
        self.baselines: tuple[Baseline, ...] = ()
        self.baselines_problem = space.problem

    def run(self) -> Result:
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
            self._solve(None, LEAST_CAP.free_share_of_left, SearchWatch(None, self.clock.stop))
            self._tell()
        else:
            self._look(None, LEAST_CAP.free_share_of_left)
        while self._least() is None and not self._finished():
            self._look(None, 1.0)

    def _published_caps(self) -> list[int]:
        """Yield the least memory limit of the published schedules that meet the target, if any."""
        objective = self.space.problem.objective
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
            bound_us = now.lower_bound_us if now.bound_scope == self.space.bound_scope else 0
            target_us = self.target_us
            if cap is None:
                target_us = max(target_us, self.target.in_us(bound_us))
            return now.value_us <= target_us or bound_us > target_us

        enough = ConditionalStop(self.clock.stop, is_decided)
        result = self._solve(cap, share, SearchWatch(enough.watch, enough))
        # A schedule that fits in none of the partitions tried may fit in another one.
        is_for_all = self.space.bound_scope != BoundScope.ALL
        is_impossible = result.stopped_by == StoppedBy.INFEASIBLE and is_for_all
        missed = is_impossible or self.knowledge.bound_us(cap) > self.target_us
        if cap is not None and missed:
            self.not_below = max(self.not_below, cap + 1)
        elif cap is not None and (result.value_us is None or result.value_us > self.target_us):
            self.open.append(cap)
        self._tell()

    def _solve(self, cap: int | None, share: float, watch: SearchWatch) -> Result:
        left_s = max(0.0, self.clock.left_s())
        limit_s = min(left_s, max(LEAST_CAP.shortest_s, share * left_s))
        best = self.knowledge.best_within(cap)
        # A limit that is searched again is searched with another seed.
        seed, self.num_looks = self.options.seed + self.num_looks, self.num_looks + 1
        hint = self.options.hint if cap is None else None
        hint, begin = (hint, None) if best is None else (best.schedule, best.problem.partition)
        options = replace(self.options, time_limit_s=limit_s, gap=0.0, hint=hint, seed=seed)
        result = self.space.within(cap, begin).search(options, watch).result
        found, bound_us, certificate = result.as_incumbent(), 0, None
        if result.bound_scope == self.space.bound_scope:
            bound_us, certificate = result.lower_bound_us, result.certificate
        self.knowledge.add(cap, found, bound_us, certificate)
        if cap is None:
            self.target_us = self.target.in_us(self.knowledge.bound_us(None))
            self.baselines, self.baselines_problem = result.baselines, result.problem
            self._keep_hint()
        return result

    def _keep_hint(self) -> None:
        """Keep the hint as a result: it may be slower, but in less memory."""
        schedule = self.options.hint
        kept = None if schedule is None else evaluate(self.space.problem, schedule, "hint")
        if kept is not None:
            figures = kept.schedule, kept.timeline, kept.value_us, 0, kept.found_by, kept.peak_bytes
            self.knowledge.schedules.append(Incumbent(self.space.problem, 0.0, *figures))

    # State of the search

    def _least(self) -> int | None:
        found = self.knowledge.least_for(self.target_us)
        return None if found is None else max(found.peak_bytes)

    def _finished(self) -> bool:
        return self.clock.is_over() or self._is_hopeless() or self._is_close()

    def _is_hopeless(self) -> bool:
        return self.knowledge.bound_us(None) > self.target_us

    def _is_close(self) -> bool:
        least = self._least()
        return least is not None and least - self.not_below <= self.options.gap * least

    def _tell(self) -> None:
        """Tell of the answer so far, if the target is met."""
        least, so_far = self._least(), self.so_far
        if least is None or so_far is None:
            return
        best = None if so_far.best is None else so_far.best.memory
        if best is None or (least, -self.not_below) < best.rank_key:
            now = self._answer().as_incumbent()
            assert now is not None
            so_far(now)

    def _answer(self) -> Result:
        found = self.knowledge.least_for(self.target_us)
        bound, reason = self.knowledge.bound(self._least()), self._reason()
        proof, problem = self._proof(), self.space.problem if found is None else found.problem
        cap, baselines = proof.cap_bytes, self.baselines
        if problem.partition != self.baselines_problem.partition:
            baselines = ()
        if cap is not None:
            problem = replace(problem, caps_bytes=(cap,) * problem.num_ranks)
            baselines = tuple(replace(r, fits=max(r.peak_bytes) <= cap) for r in baselines)
        if found is None:
            result = Result.without_schedule(problem, reason, self._why_none(proof, reason))
        else:
            result = found.as_result(0.0, reason)
        return replace(
            result,
            problem=problem,
            lower_bound_us=bound.lower_bound_us,
            stopped_by=reason,
            baselines=baselines,
            wall_s=self.clock.elapsed_s,
            bound_scope=self.space.bound_scope,
            certificate=bound.certificate,
            memory=proof,
        )

    def _proof(self) -> TargetProof:
        least, fastest = self._least(), self.knowledge.best_within(None)
        size = "none" if least is None else f"{format_bytes_both(least)} on every rank"
        return TargetProof(
            least,
            self.not_below,
            f"memory limit found: {size}",
            target_us=self.target_us,
            fastest_us=None if fastest is None else fastest.value_us,
            bound_us=self.knowledge.bound_us(None),
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

    def _why_none(self, proof: TargetProof, reason: StoppedBy) -> str:
        objective, us = self.space.problem.objective.words, proof.target_us
        target = f"{objective} of {format_us(us)} ({us} µs) or less"
        if reason == StoppedBy.INFEASIBLE:
            return (
                f"no schedule has a {target}, however much memory there is: the lower bound is "
                f"{proof.bound_us} µs; give a §target of that at least, other ranks or another "
                f"placement"
            )
        best = "none" if proof.fastest_us is None else f"{proof.fastest_us} µs"
        return (
            f"no schedule with a {target} was found in the time given, with any memory: the best "
            f"is {best}, the lower bound {proof.bound_us} µs; give more time or a larger §target"
        )
