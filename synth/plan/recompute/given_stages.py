"""Solving with given recomputing stages: the search has no R, which is inserted afterwards."""

from collections.abc import Collection
from dataclasses import replace

from synth.costs.merged_recomputation import merged
from synth.plan.recompute.layer_bounds import needed_whatever_is_recomputed
from synth.plan.recompute.layer_choice import applies
from synth.plan.recompute.stages import bounds, relaxed, without_recompute, written_out
from synth.schedule.files.certificate import CLOSED_FORMS
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule, evaluate
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.solver.solver import solve
from synth.solver.watch import UNWATCHED, OnImprovement, SolveWatch
from synth.units import format_bytes_both


def solve_recomputing(
    problem: Problem,
    stages: Collection[int],
    options: SolveOptions | None = None,
    watch: SolveWatch = UNWATCHED,
) -> Result:
    """Solve with just these stages recomputing, all their micro-batches.

    The bound holds for all orders with this choice of stages. Arguments are those of
    `solver.solve`.
    """
    options = options or SolveOptions()
    if options.hint is not None:
        options = replace(options, hint=without_recompute(options.hint))
    if not stages:
        return solve(problem, options, watch)
    search = _Recomputing(problem, frozenset(stages), watch.on_improvement)
    inner = replace(
        options, without=options.without | {Part.BOUNDS}
    )  # they would fix the place of R
    return search.result(solve(search.seen, inner, SolveWatch(search.take, watch.stop)))


class _Recomputing:
    """Writes out schedules of the search with R, and keeps the best one that fits."""

    def __init__(
        self, problem: Problem, stages: frozenset[int], on_improvement: OnImprovement | None
    ) -> None:
        self.problem, self.stages = problem, stages
        self.seen = replace(problem, costs=merged(problem.costs, stages))
        self.bound_us = problem.objective.value_us(bounds(problem, stages))
        self.so_far = BestSoFar(on_improvement)

    def take(self, incumbent: Incumbent) -> None:
        """Write out an improvement, and pass it on if it is one."""
        candidate = with_r(self.problem, self.stages, incumbent)
        if candidate is not None:
            self.so_far(
                replace(
                    incumbent,
                    problem=self.problem,
                    schedule=candidate.schedule,
                    timeline=candidate.timeline,
                    value_us=candidate.value_us,
                    lower_bound_us=min(self.bound_us, candidate.value_us),
                    peak_bytes=candidate.peak_bytes,
                    certificate=CLOSED_FORMS,
                )
            )

    def result(self, found: Result) -> Result:
        """Return the result of the search, on the true costs."""
        baselines = tuple(replace(one, name=f"{one.name}+R") for one in found.baselines)
        last = found.as_incumbent()
        if last is not None:
            self.take(last)
        found = replace(
            found,
            problem=self.problem,
            baselines=baselines,
            lower_bound_us=self.bound_us,
            certificate=CLOSED_FORMS,
        )
        best = self.so_far.best
        if best is None:
            return without_schedule(found, self.problem, self.stages)
        return replace(
            found,
            schedule=best.schedule,
            timeline=best.timeline,
            value_us=best.value_us,
            peak_bytes=best.peak_bytes,
            found_by=best.found_by,
            stopped_by=self._reason(found.stopped_by, best.value_us),
        )

    def _reason(self, reason: StoppedBy, value_us: int) -> StoppedBy:
        """Return why the search ended: its own proof is for R right before B only."""
        if value_us <= self.bound_us:
            return StoppedBy.OPTIMAL
        return StoppedBy.NOTHING_BETTER if reason in (StoppedBy.OPTIMAL, StoppedBy.GAP) else reason


def with_r(
    problem: Problem, stages: Collection[int], found: EvaluatedSchedule | Incumbent
) -> EvaluatedSchedule | None:
    """Write out a schedule with R's of some stages; None if it fits with no buffering.

    Its own buffering is tried first.
    """
    longer = written_out(found.schedule, stages)
    for buffering in (longer.buffering, *BUFFERINGS):
        candidate = evaluate(problem, replace(longer, buffering=buffering), found.found_by)
        if candidate is not None:
            return candidate
    return None


def without_schedule(found: Result, problem: Problem, stages: Collection[int]) -> Result:
    """Return the result without a schedule: infeasible if the relaxation does not fit either."""
    found = replace(found, schedule=None, timeline=None, value_us=None, peak_bytes=None)
    message = why_nothing_fits(problem, stages)
    if message is not None:
        return replace(found, stopped_by=StoppedBy.INFEASIBLE, message=message)
    if found.stopped_by in (StoppedBy.TIME_LIMIT, StoppedBy.INTERRUPT):
        return found
    return replace(
        found,
        stopped_by=StoppedBy.NOTHING_BETTER,
        message="no schedule was found that fits, and none is proven impossible, with stages that "
        "recompute; give more memory, more ranks, or a smaller micro-batch",
    )


def why_nothing_fits(problem: Problem, stages: Collection[int]) -> str | None:
    """Return why no schedule fits with any recomputation; None if one may fit."""
    caps = problem.caps_bytes or ()
    needed = least_needed_bytes(problem, stages)
    for rank, (need, cap) in enumerate(zip(needed, caps, strict=False)):
        if need > cap:
            sizes = ",".join(map(str, problem.partition or ()))
            given = f" for this partition ({sizes})" if sizes else ""
            return (
                f"no schedule fits{given}, whatever is recomputed: rank {rank} needs "
                f"{format_bytes_both(need)} even with one micro-batch at a time, and its memory "
                f"limit is {format_bytes_both(cap)}; give more memory, more ranks, or a smaller "
                "micro-batch"
            )
    return None


def least_needed_bytes(problem: Problem, stages: Collection[int]) -> tuple[int, ...]:
    """Return each rank's least memory if these stages, or any layers, may recompute."""
    if applies(problem):
        return needed_whatever_is_recomputed(problem)
    return needed_bytes(relaxed(problem, stages), recomputing=True)
