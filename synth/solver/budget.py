"""The time of a search: its clock and its limit, or effort that is counted instead.

A deterministic search does not look at the clock: its limit counts CP-SAT's deterministic seconds,
and every step spends a fixed share of it.
"""

import threading

from synth.search.clock import Clock
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import SEARCH


class Budget(Clock):
    """Clock, limit and stop of a search.

    Attributes:
        time_limit_s: the time limit; `limit_s` is earlier, to keep the rest for robustness.
        evaluation_s: duration of one exact evaluation of a schedule, so that none is begun that
            would end too late.
    """

    def __init__(self, options: SolveOptions, stop: threading.Event | None = None) -> None:
        self.time_limit_s = options.time_limit_s
        super().__init__(
            options.time_limit_s * (1 - _reserved_share(options)),
            is_deterministic=options.deterministic,
            stop=stop,
        )
        self.evaluation_s = 0.0
        self._evaluates_until_s = self.limit_s

    def is_late(self, until_s: float, evaluations: int = 1) -> bool:
        """Return True if this many more evaluations would end after a moment since the start."""
        is_late = self.elapsed_s + evaluations * self.evaluation_s > until_s
        return self.stop.is_set() or (is_late and not self.is_deterministic)

    def time_is_up(self, evaluations: int = 1) -> bool:
        """Return True if this many more evaluations would end after the limit, or the grace period.

        Args:
            evaluations: exact evaluations of a schedule.
        """
        return self.is_late(self._evaluates_until_s, evaluations)

    def begin_grace(self) -> None:
        """Allow evaluations for a moment from now on, even if the time is up."""
        from_s = max(self.elapsed_s, self.time_limit_s)
        self._evaluates_until_s = from_s + SEARCH.grace_s

    def is_over(self) -> bool:
        """Return True if the search must end: stopped, or out of time."""
        return self.time_is_up() or self.left_s() <= 0

    def allow(self, seconds: float) -> "Allowance":
        """Begin a part of this budget."""
        return Allowance(self, seconds)


class Allowance:
    """A part of a budget, in seconds of the clock or deterministic ones, from its creation on."""

    def __init__(self, budget: Budget, seconds: float) -> None:
        self._budget, self._seconds = budget, seconds
        self._until_s = budget.elapsed_s + seconds

    def left_s(self) -> float:
        """Seconds left."""
        if self._budget.is_deterministic:
            return self._seconds
        return self._until_s - self._budget.elapsed_s

    def spend(self, seconds: float) -> None:
        """Count effort; the clock counts by itself."""
        self._seconds -= seconds

    def is_over(self) -> bool:
        """Return True if the clock has passed its end; never in a deterministic search."""
        return not self._budget.is_deterministic and self._budget.elapsed_s > self._until_s


def _reserved_share(options: SolveOptions) -> float:
    """Share of the limit kept for robustness; a deterministic search counts that effort apart."""
    if options.deterministic or Part.ROBUSTNESS in options.without:
        return 0.0
    return SEARCH.robustness_share
