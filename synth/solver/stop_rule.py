"""The rule by which a search ends: proven, close enough, interrupted, or out of time."""

from typing import NamedTuple

from synth.search.outcome import StoppedBy, reason_of_end, relative_gap
from synth.solver.budget import Budget


class BestKnown(NamedTuple):
    """The best value and the best bound that a search knows.

    Attributes:
        value_us: the incumbent's; None before the first.
        is_infeasible: True if no schedule keeps the caps.
    """

    value_us: int | None
    bound_us: int
    is_infeasible: bool

    @property
    def is_optimal(self) -> bool:
        """True if the incumbent meets the bound."""
        return self.value_us is not None and self.value_us <= self.bound_us


class StopRule:
    """Decides by a budget and an accepted gap whether a search ends, and says why."""

    def __init__(self, budget: Budget, gap: float) -> None:
        """Accept a relative gap of at most `gap`."""
        self._budget, self._gap = budget, gap

    def is_met(self, known: BestKnown) -> bool:
        """Return True if the search should end."""
        return self._budget.is_over() or known.is_infeasible or self._is_close(known)

    def reason(self, known: BestKnown) -> StoppedBy:
        """Return why the search ends now."""
        return reason_of_end(
            known.value_us,
            known.bound_us,
            self._gap,
            is_interrupted=self._budget.stop.is_set(),
            is_exhausted=self._budget.left_s() > 0,
            is_infeasible=known.is_infeasible,
        )

    def _is_close(self, known: BestKnown) -> bool:
        """Return True if the gap is as small as the rule asks for."""
        value_us = known.value_us
        return value_us is not None and relative_gap(value_us, known.bound_us) <= self._gap
