"""Searches for the least memory limit: subject to a time, or without a bubble once full."""

import threading
from collections.abc import Callable
from dataclasses import replace

from synth.errors import SynthError
from synth.options.memory_limit import MemoryLimit
from synth.options.request import Request, failure_code
from synth.options.solve_task import SolveTask
from synth.plan.choose.candidates import Partitioning
from synth.plan.memory_curve.least_cap import LeastCap
from synth.plan.memory_curve.least_cap_search import OnProgress, least_cap
from synth.plan.memory_curve.steady_cap import SteadyCap, least_steady
from synth.plan.recompute.choice_search import Listeners
from synth.plan.tuning import STEADY_CAP
from synth.search.outcome import StoppedBy
from synth.solver.result import Result
from synth.units import format_bytes, format_bytes_both, parse_seconds

# Smaller bubble rates are rounding: times are whole microseconds.
_NOTHING = 1e-4


class TargetMissed(SynthError):
    """No schedule meets the target; the exit code shows whether that is proven."""

    def __init__(self, least: LeastCap) -> None:
        super().__init__(least.message or "no schedule meets the target")
        self.exit_code = failure_code(least.stopped_by)


def search_least(
    asked: SolveTask, on_progress: OnProgress | None, stop: threading.Event
) -> LeastCap:
    """Minimize the limit, one for all ranks, under which the target time is met.

    Args:
        asked: a search with a target.
        on_progress: called with every schedule in less memory, and with better bounds.
        stop: set it, from any thread, to get the best so far.
    """
    request, candidates = asked.request, asked.weight_candidates
    assert asked.target is not None
    is_sought = request.partitioning == Partitioning.SEARCHED
    return least_cap(
        request.problem if candidates is None else candidates.problem,
        asked.target,
        options=request.options,
        on_progress=on_progress,
        stop=stop,
        recompute=request.recompute,
        profile=request.as_run if is_sought and candidates is None else None,
        candidates=None if candidates is None else (candidates, request.as_run),
    )


def with_limit(request: Request, least: LeastCap, result: Result) -> Request:
    """Return the request as if the limit found had been given."""
    assert least.cap_bytes is not None
    limit = f"memory limit found: {format_bytes_both(least.cap_bytes)} on every rank"
    limited = MemoryLimit((least.cap_bytes,) * result.problem.num_ranks, limit)
    return replace(request.on(result.problem), limit=limited)


def search_steady(
    asked: SolveTask,
    listeners: Callable[[SolveTask], Listeners],
    stop: threading.Event,
) -> tuple[Request, Result]:
    """Find the least limit without a bubble once the pipeline is full, and search under it.

    Args:
        asked: a search of one candidate.
        listeners: returns the listeners of the search under the limit found.
        stop: set it, from any thread, to get the best so far.

    Returns:
        The request under the limit found, and its result; without a schedule if there is none that
        repeats without a bubble.
    """
    request = asked.request
    clock = request.options.clock(stop)
    clock.grant(STEADY_CAP.share_of_limit * request.options.time_limit_s)
    found = least_steady(request.problem, request.options, stop)
    if found is None:
        return request, _nothing(request, clock.elapsed_s, is_interrupted=stop.is_set())
    limited = asked.on(_limited(request, found, max(0.0, clock.left_s())))
    result = limited.search(listeners(limited), stop).result
    return limited.request, replace(result, wall_s=clock.elapsed_s)


def _limited(request: Request, found: SteadyCap, left_s: float) -> Request:
    """Return the request with the limit found, and with the schedule found as hint."""
    rest = "" if found.bubble_rate < _NOTHING else f" ({100 * found.bubble_rate:.2f} % bubble)"
    least = "times are too fine for a proof that it is the least"
    if found.not_below_bytes is not None:
        least = f"proven not below {format_bytes(found.not_below_bytes)} for such a pattern"
    explanation = (
        f"memory limit found: {format_bytes_both(found.cap_bytes)} on every rank, in which one "
        f"more micro-batch takes {found.each_us:,.0f} µs where the busiest rank works "
        f"{found.work_us:,} µs{rest}; {least}"
    )
    caps = (found.cap_bytes,) * request.problem.num_ranks
    return replace(
        request,
        problem=replace(request.problem, caps_bytes=caps),
        limit=MemoryLimit(caps, explanation),
        options=replace(request.options, hint=found.schedule, time_limit_s=left_s),
    )


def _nothing(request: Request, spent_s: float, *, is_interrupted: bool) -> Result:
    """Return the result of a search that found no limit."""
    limit_s = parse_seconds(request.arguments["time_limit"])
    reason, message = (
        StoppedBy.TIME_LIMIT,
        f"§target steady: no schedule that repeats without bubble was found in {limit_s:g} s; "
        "allow more §time_limit, or give a time as target",
    )
    if is_interrupted:
        reason, message = (
            StoppedBy.INTERRUPT,
            "§target steady: interrupted before a schedule that repeats without bubble was "
            "found; run the same command again",
        )
    return Result(
        problem=request.problem,
        schedule=None,
        timeline=None,
        value_us=None,
        lower_bound_us=0,
        peak_bytes=None,
        found_by=None,
        stopped_by=reason,
        baselines=(),
        wall_s=spent_s,
        message=message,
    )
