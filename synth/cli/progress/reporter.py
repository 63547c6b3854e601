"""Progress of a search on stderr: a line per improvement, fewer if stderr is no terminal."""

import sys
import time

from synth.cli.answer.candidates import sizes
from synth.cli.answer.least_memory import memory_line
from synth.cli.answer.output import percent, talk
from synth.cli.progress.line import current_line
from synth.options.memory_limit import MemoryLimit
from synth.options.request import Request
from synth.options.solve_task import SolveTask
from synth.plan.memory_curve.target_proof import TargetProof
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.units import format_bytes, format_us

_PAUSE_S, _PAUSE_ON_TERMINAL_S = 5.0, 0.5


class ProgressReporter:
    """Saves and reports improvements; better bounds are reported only."""

    def __init__(self, task: SolveTask) -> None:
        """Report on a search."""
        self._task = task
        self._pause_s = _PAUSE_ON_TERMINAL_S if sys.stderr.isatty() else _PAUSE_S
        self._told_at: float = -self._pause_s
        # The only candidate was announced.
        self._place = None if task.has_several else self._place_of(task.request.problem)
        self._heading = ""
        self._limit: MemoryLimit = task.request.limit
        self._saved: object = None
        self._line = current_line()

    def __call__(self, incumbent: Incumbent) -> None:
        """Save and report an improvement of the schedule or of the bound."""
        request = self._task.request.of(incumbent)
        self._take_place(request, incumbent)
        if incumbent.schedule is not self._saved:
            request.save_so_far(incumbent)
            self._saved = incumbent.schedule
        self._line.tell(f"{_value_of(incumbent)}, {bound_of(incumbent)}")
        now = time.monotonic()
        if now - self._told_at >= self._pause_s:
            self._told_at = now
            if self._heading:
                talk(self._heading)
                self._heading = ""
            talk(f"{incumbent.elapsed_s:7.1f} s  {_report(incumbent)}  by {incumbent.found_by}")

    def _take_place(self, request: Request, incumbent: Incumbent) -> None:
        """Set the heading of the next line if it is of another place, or under a limit found."""
        problem = incumbent.problem
        if isinstance(incumbent.memory, TargetProof):
            return
        if (place := self._place_of(problem)) != self._place:
            self._place, self._heading = place, f"on {place[0]}: {sizes(problem)}"
        if request.limit != self._limit:
            self._limit, self._heading = request.limit, request.limit.explanation

    def _place_of(self, problem: Problem) -> tuple[object, ...]:
        name = self._task.space.name_of(problem)
        return name, problem.partition, problem.recomputed_layers


def _report(incumbent: Incumbent) -> str:
    """Return the figures of a line of progress."""
    if isinstance(incumbent.memory, TargetProof):
        return memory_line(incumbent, incumbent.memory)
    line, objective = incumbent.timeline, incumbent.problem.objective
    rate = objective.bubble_rate(line, max(line.work_us))
    idle = objective.bubble_rate(line, line.mean_work_us)
    # Of a pipeline that is never flushed the rates are those of filling and draining.
    rates = f"bubble rate {percent(rate)}  mean idle {percent(idle)}  "
    peak = max(incumbent.peak_bytes)
    return (
        f"{_value_of(incumbent)}  {bound_of(incumbent)}  "
        f"{rates if incumbent.steady is None else ''}peak {format_bytes(peak)} on rank "
        f"{incumbent.peak_bytes.index(peak)}"
    )


def _value_of(incumbent: Incumbent) -> str:
    """Return the time that the search minimizes."""
    if incumbent.steady is not None:
        return f"{format_us(incumbent.steady.us)} of a micro-batch"
    return f"{incumbent.problem.objective.words} {format_us(incumbent.value_us)}"


def bound_of(incumbent: Incumbent) -> str:
    """Return the lower bound of a search so far, and the gap to it."""
    steady = incumbent.steady
    if steady is not None:
        return f"bound {format_us(steady.lower_bound_us)}, gap {percent(steady.gap)}"
    if incumbent.lower_bound_us == 0:
        return "no bound yet"
    return f"bound {format_us(incumbent.lower_bound_us)}, gap {percent(incumbent.gap)}"
