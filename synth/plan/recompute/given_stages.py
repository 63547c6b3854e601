"""Solving with given recomputing stages: the search has no R, which is inserted afterwards."""

from collections.abc import Collection
from dataclasses import replace

from synth.costs.merged_recomputation import merged
from synth.plan.recompute.layer_bounds import needed_whatever_is_recomputed
from synth.plan.recompute.layer_choice import applies
from synth.plan.recompute.stages import bounds, relaxed
from synth.schedule.files.certificate import CLOSED_FORMS
from synth.schedule.recomputed_stages import without_recompute, written_out
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import MergedStages, Problem
from synth.solver.result import Incumbent, Result
from synth.solver.solver import solve
from synth.solver.watch import UNWATCHED, OnImprovement, SolveWatch
from synth.units import format_bytes, format_bytes_both


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
        self.seen = with_merged(problem, stages)
        self.bound_us = problem.objective.value_us(bounds(problem, stages))
        self.so_far = BestSoFar(on_improvement)

    def take(self, incumbent: Incumbent) -> None:
        """Write out an improvement, and pass it on if it is one."""
        self.so_far(
            replace(
                incumbent,
                problem=self.problem,
                schedule=written_out(incumbent.schedule, self.stages),
                lower_bound_us=min(self.bound_us, incumbent.value_us),
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


def with_merged(problem: Problem, stages: Collection[int]) -> Problem:
    """Return the problem that is searched where some stages recompute: R is a part of B."""
    seen = MergedStages(frozenset(stages), problem.costs)
    return replace(problem, costs=merged(problem.costs, stages), merged=seen)


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
            static = problem.static_bytes(rank)
            return (
                f"no schedule fits{given}, whatever is recomputed: rank {rank} needs "
                f"{format_bytes_both(need)} even with one micro-batch at a time, "
                f"{format_bytes(static)} of it for weights, gradients and optimizer, and its "
                f"memory limit is {format_bytes_both(cap)}; give "
                f"{_ways_out(problem, is_full=static > cap)}"
            )
    return None


def _ways_out(problem: Problem, *, is_full: bool) -> str:
    """Return what would make a schedule fit.

    Args:
        is_full: the rank has no room for its weights alone.
    """
    ways = ["more memory", "more ranks"]
    if not is_full:
        ways.append("a smaller micro-batch")
    elif problem.profile is not None and problem.profile.provenance.estimate is not None:
        ways.append(
            "an estimate with fewer weights per rank (--tp, --ep or --dp of synth estimate)"
        )
    return ", ".join(ways[:-1]) + (", or " if len(ways) > 2 else " or ") + ways[-1]


def least_needed_bytes(problem: Problem, stages: Collection[int]) -> tuple[int, ...]:
    """Return each rank's least memory if these stages, or any layers, may recompute."""
    if applies(problem):
        return needed_whatever_is_recomputed(problem)
    return needed_bytes(relaxed(problem, stages), recomputing=True)
