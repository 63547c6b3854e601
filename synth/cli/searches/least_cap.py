"""`synth solve --mem-limit min`: minimize memory subject to a time."""

import threading
from typing import Any

from synth.cli.answer.output import AnswerForm, Format, answer, answer_json, percent, talk
from synth.cli.answer.solve import as_json, as_text
from synth.cli.progress.interrupt import run_interruptibly
from synth.cli.progress.line import current_line
from synth.objective import BoundScope
from synth.option_names import named
from synth.options.least_memory import TargetMissed, search_least, with_limit
from synth.options.request import Request, announce, announce_sizes
from synth.options.solve_task import SolveTask
from synth.plan.choose.candidates import Partitioning
from synth.plan.memory_curve.least_cap import LeastCap
from synth.solver.result import Result
from synth.units import format_bytes, format_bytes_both, format_us


def solve_least(asked: SolveTask, form: AnswerForm) -> None:
    """Search for the least limit under which a time is met, save every improvement, and answer.

    Raises:
        TargetMissed: there is no schedule to give.
    """
    request, candidates = asked.request, asked.weight_candidates
    if candidates is not None:
        announce_sizes(request)
        talk(f"weights to try: {'; '.join(candidates.names)}")
    elif request.partitioning == Partitioning.SEARCHED:
        announce_sizes(request)
    else:
        announce(request)
    progress = _Progress(request)
    least = run_interruptibly(
        lambda stop: search_least(asked, progress, stop), request.deadline.until(), progress.close
    )
    result = least.result()
    if form.format == Format.JSON:
        answer_json(_json(request, least, result))
    if result is None:
        raise TargetMissed(least)
    kept = with_limit(request, least, result)
    plan = kept.plan(result)
    if request.output is not None:
        plan.save(request.output)
    if form.format == Format.TEXT:
        text = as_text(kept, result, plan, has_all_rows=form.has_all_rows)
        answer(f"{_sentence(least)}\n\n{text}")
    talk(f"saved as {request.output}" if request.output else "not saved: give -o plan.json")


class _Progress:
    """Saves and reports every schedule in less memory, and better bounds."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._told: tuple[int | None, int] | None = None
        self._shown = current_line()
        self._saved: int | None = None
        self._lock = threading.Lock()
        self._last: LeastCap | None = None
        self._is_closed = False

    def close(self) -> LeastCap | None:
        """Stop listening, and return the state of the search."""
        with self._lock:
            self._is_closed = self._last is not None
            return self._last

    def __call__(self, least: LeastCap) -> None:
        """Take a new state of the search."""
        with self._lock:
            if not self._is_closed:
                self._last = least
                self._take(least)

    def _take(self, least: LeastCap) -> None:
        if least.cap_bytes is not None and least.cap_bytes != self._saved:
            result = least.result()
            assert result is not None
            with_limit(self._request, least, result).save_so_far(result)
            self._saved = least.cap_bytes
        if (least.cap_bytes, least.not_below_bytes) != self._told:
            self._told = (least.cap_bytes, least.not_below_bytes)
            self._shown.tell(" ".join(_line(least).split()))
            talk(_line(least))


def _line(least: LeastCap) -> str:
    proven = f"proven not below {format_bytes(least.not_below_bytes)}"
    if least.found is None or least.gap is None:
        fastest = "" if least.fastest_us is None else f"; fastest {format_us(least.fastest_us)}"
        return f"{least.wall_s:7.1f} s  target not met yet{fastest}  {proven}"
    return (
        f"{least.wall_s:7.1f} s  target met with {format_bytes(least.found.peak)}  {proven}  gap "
        f"{percent(least.gap)}  {least.problem.objective.words} "
        f"{format_us(least.found.value_us)}  by {least.found.found_by}"
    )


def _sentence(least: LeastCap) -> str:
    """Say the memory limit found, its lower bound, and the partitions that the bound covers."""
    assert least.cap_bytes is not None and least.gap is not None
    proven = "proven the least" if least.gap == 0 else f"gap {percent(least.gap)}"
    where = least.bound_scope.words
    if least.bound_scope != BoundScope.CANDIDATES:
        where += " in this placement"
    return (
        f"target: {least.problem.objective.words} {format_us(least.target_us)} "
        f"({least.target_us} µs) or less\n"
        f"least memory limit, one for all ranks: found {format_bytes_both(least.cap_bytes)} = "
        f"{least.cap_bytes}B,\n"
        f"proven not below {format_bytes_both(least.not_below_bytes)} = "
        f"{least.not_below_bytes}B, for {where}: {proven}"
    )


def _json(request: Request, least: LeastCap, result: Result | None) -> dict[str, Any]:
    about = {
        "target_us": least.target_us,
        "cap_bytes": least.cap_bytes,
        "not_below_bytes": least.not_below_bytes,
        "memory_gap": least.gap,
        "bound_holds_for": least.bound_scope,
        "fastest_us": least.fastest_us,
        "lower_bound_without_limit_us": least.bound_us,
    }
    if result is None:
        message = least.message and named(least.message)
        return {**about, "stopped_by": least.stopped_by, "message": message, "plan": None}
    return about | as_json(with_limit(request, least, result), result)
