"""`synth solve --mem-limit min --target steady`: minimize memory without a steady-state bubble."""

import threading
import time
from dataclasses import replace

from synth.cli.answer.output import AnswerForm, percent, talk
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.searches.within_limits import finish, search
from synth.options.memory_limit import MemoryLimit
from synth.options.request import Request, announce
from synth.plan.memory_curve.steady_cap import SteadyCap, least_steady
from synth.plan.tuning import STEADY_CAP
from synth.solver.result import Result, StoppedBy
from synth.units import format_bytes, format_bytes_both, parse_seconds

# Smaller bubble rates are rounding: times are whole microseconds.
_NOTHING = 1e-4


def solve_steady(request: Request, form: AnswerForm) -> None:
    """Find the least limit, search under it in the remaining time, and answer.

    Raises:
        NoSchedule: no schedule that repeats without bubble was found.
    """
    announce(request)
    request, result = run_interruptibly(lambda stop: _search(request, stop))
    finish(request, result, form)


def _search(request: Request, stop: threading.Event) -> tuple[Request, Result]:
    """Return the request under the limit found, and its result."""
    began = time.monotonic()
    found = least_steady(request.problem, request.options, stop)
    spent_s = time.monotonic() - began
    if found is None:
        return request, _nothing(request, spent_s, stop)
    limit_s = request.options.time_limit_s
    if request.options.deterministic:
        spent_s = STEADY_CAP.share_of_limit * limit_s
    limited = _limited(request, found, max(0.0, limit_s - spent_s))
    talk(limited.limit.explanation)
    result = search(limited, stop)
    return limited, replace(result, wall_s=time.monotonic() - began)


def _limited(request: Request, found: SteadyCap, left_s: float) -> Request:
    """Return the request with the limit found, and with the schedule found as hint."""
    rest = "" if found.bubble_rate < _NOTHING else f" ({percent(found.bubble_rate)} bubble)"
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


def _nothing(request: Request, spent_s: float, stop: threading.Event) -> Result:
    """Return the result of a search that found no limit."""
    reason, message = (
        StoppedBy.TIME_LIMIT,
        "--target steady: no schedule that repeats without bubble was found in "
        f"{parse_seconds(request.arguments['time_limit']):g} s; allow more --time-limit, or give "
        "a time as target",
    )
    if stop.is_set():
        reason, message = (
            StoppedBy.INTERRUPT,
            "--target steady: interrupted before a schedule that repeats without bubble was "
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
