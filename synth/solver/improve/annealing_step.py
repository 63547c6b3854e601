"""Simulated annealing from the incumbent and the pool of orders, within the budget of a search."""

import math
from typing import ClassVar

from synth.solver.improve.annealing import Annealing
from synth.solver.improve.compiled_kernels import are_usable
from synth.solver.improve.improver import SearchContext
from synth.solver.options import Part
from synth.solver.tuning import ANNEALING, SEARCH


class AnnealingStep:
    """Annealing that is called several times and continues where it ended."""

    part: ClassVar[Part] = Part.ANNEALING

    def __init__(self, context: SearchContext) -> None:
        self.state, self._setting = context.state, context.setting
        self._annealing: Annealing | None = None

    def run(self, share: float, *, is_brief: bool) -> None:
        """Anneal for a share of the remaining time; a deterministic search counts moves instead.

        Args:
            is_brief: end after as much effort without a gain as it took to find the last one, and
                make no long rounds.
        """
        best, budget = self.state.best, self.state.budget
        if best is None or not self._is_compiled(share):
            return
        self.state.options.report_part(self.part)
        if self._annealing is None:
            self._annealing = Annealing(self.state.problem, self.state.options.seed)
        annealing = self._annealing
        annealing.add(best.schedule.programs, [best.schedule.buffering])
        for programs in self.state.pool.take_new():
            annealing.add(programs)
        allowance = budget.allow(share * budget.left_s())
        limit_units = budget.time_limit_s * ANNEALING.units_per_s
        began = improved = annealing.units_spent
        least_patience = self._least_stalled_share() * limit_units

        def should_stop() -> bool:
            patience = max(least_patience, improved - began)
            is_stalled = is_brief and annealing.units_spent - improved > patience
            return allowance.is_over() or is_stalled or self.state.poll()

        effort = math.inf
        if budget.is_deterministic:
            effort = SEARCH.annealing_share_first * limit_units
        last = annealing.units_spent + effort

        def left() -> float:
            if budget.is_deterministic:
                return last - annealing.units_spent
            return allowance.left_s() * ANNEALING.units_per_s

        if self._setting.anneals_most and not is_brief:
            candidates = annealing.run_long(left, should_stop)
        else:
            candidates = annealing.run(effort, should_stop)
        for candidate in candidates:
            improved = annealing.units_spent
            self.state.offer(candidate)

    def _is_compiled(self, share: float) -> bool:
        """Return True if the walk is compiled; wait for that if there is time enough."""
        budget = self.state.budget
        waits = budget.is_deterministic or (share * budget.left_s() >= ANNEALING.least_s_to_compile)
        return are_usable(waits=waits, should_stop=self.state.poll)

    def _least_stalled_share(self) -> float:
        """Return the share of the time limit that a brief run spends at least without a gain."""
        if self._setting.tries_exact:
            return ANNEALING.least_stalled_share_before_exact
        return ANNEALING.least_stalled_share


IMPROVER = AnnealingStep
