"""Progress of a search on stderr: a line per improvement, fewer if stderr is no terminal."""

import sys
import time

from synth.cli.answer.output import percent, talk
from synth.cli.progress.line import current_line
from synth.options.request import Request
from synth.solver.result import Incumbent
from synth.units import format_bytes, format_us

_PAUSE_S, _PAUSE_ON_TERMINAL_S = 5.0, 0.5


class ProgressReporter:
    """Saves and reports improvements; better bounds are reported only."""

    def __init__(
        self, request: Request, heading: str = "", before: "ProgressReporter | None" = None
    ) -> None:
        """Report on the search for a request.

        Args:
            request: what is searched.
            heading: stands above the first line.
            before: another search on which there was a report, so that lines come no faster.
        """
        self._request = request
        self._objective = request.problem.objective
        self._pause_s = _PAUSE_ON_TERMINAL_S if sys.stderr.isatty() else _PAUSE_S
        self._told_at: float = -self._pause_s if before is None else before._told_at
        self._heading = heading
        self._saved: object = None
        self._line = current_line()

    def is_of(self, request: Request) -> bool:
        """Return True if a request has the same placement, partition and recomputed layers."""
        one, other = self._request.problem, request.problem
        where = (one.placement, one.partition, one.recomputed_layers)
        return where == (other.placement, other.partition, other.recomputed_layers)

    def __call__(self, incumbent: Incumbent) -> None:
        """Save and report an improvement of the schedule or of the bound."""
        if incumbent.schedule is not self._saved:
            self._request.save_so_far(incumbent)
            self._saved = incumbent.schedule
        self._line.tell(f"{self._value_of(incumbent)}, {bound_of(incumbent)}")
        now = time.monotonic()
        if now - self._told_at >= self._pause_s:
            self._told_at = now
            if self._heading:
                talk(self._heading)
                self._heading = ""
            talk(self._report(incumbent))

    def _report(self, incumbent: Incumbent) -> str:
        line = incumbent.timeline
        rate = self._objective.bubble_rate(line, max(line.work_us))
        idle = self._objective.bubble_rate(line, line.mean_work_us)
        # Of a pipeline that is never flushed the rates are those of filling and draining.
        rates = f"bubble rate {percent(rate)}  mean idle {percent(idle)}  "
        peak = max(incumbent.peak_bytes)
        return (
            f"{incumbent.elapsed_s:7.1f} s  {self._value_of(incumbent)}  {bound_of(incumbent)}  "
            f"{rates if incumbent.steady is None else ''}peak {format_bytes(peak)} on rank "
            f"{incumbent.peak_bytes.index(peak)}  by {incumbent.found_by}"
        )

    def _value_of(self, incumbent: Incumbent) -> str:
        """Return the time that the search minimizes."""
        if incumbent.steady is not None:
            return f"{format_us(incumbent.steady.us)} of a micro-batch"
        return f"{self._objective.words} {format_us(incumbent.value_us)}"


def bound_of(incumbent: Incumbent) -> str:
    """Return the lower bound of a search so far, and the gap to it."""
    steady = incumbent.steady
    if steady is not None:
        return f"bound {format_us(steady.lower_bound_us)}, gap {percent(steady.gap)}"
    if incumbent.lower_bound_us == 0:
        return "no bound yet"
    return f"bound {format_us(incumbent.lower_bound_us)}, gap {percent(incumbent.gap)}"
