"""The solver's search that proves or disproves the bound that a plan claims."""

import threading
from dataclasses import replace

from synth.errors import SynthError
from synth.schedule.model import Schedule
from synth.search.clock import Clock
from synth.search.conditional_stop import ConditionalStop
from synth.search.outcome import StoppedBy, relative_gap
from synth.solver.bounds.closed_form import work_bound_us
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.solver.solver import solve
from synth.solver.watch import SolveWatch

# Slow heuristics are left out; the quick ones may disprove a bound.
_WITHOUT = frozenset({Part.SHORT_INSTANCE, Part.MODULO, Part.WINDOWS, Part.ROBUSTNESS})

# Left out if a bound is only to be disproved.
_NO_PROOFS = frozenset({Part.BOUNDS, Part.EXACT})


class ClaimSearch:
    """Searches, within one time limit, for a proof of a claimed bound or a schedule below it.

    Attributes:
        options: the options of every search; the time limit is for all of them together.
        witness_us: the value of a schedule below the claimed bound; None: none is known.
    """

    def __init__(
        self, claimed_us: int, best_us: int, options: SolveOptions, stop: threading.Event
    ) -> None:
        """Begin the time limit.

        Args:
            claimed_us: the bound that the plan claims.
            best_us: the value of the plan's schedule.
            options: the time limit, the workers and the seed.
            stop: set it to end early.
        """
        self.options = replace(options, without=options.without | _WITHOUT)
        self.witness_us: int | None = None
        self.claimed_us, self._best_us = claimed_us, best_us
        self.clock = Clock(options.time_limit_s, stop=stop)

    def is_over(self) -> bool:
        """Return True if the time is up, or the bound is disproved."""
        return self.witness_us is not None or self.clock.is_over()

    @property
    def remaining(self) -> SolveOptions:
        """The options, with the time that is left."""
        return replace(self.options, time_limit_s=self.clock.left_s())

    def note(self, value_us: int | None) -> None:
        """Note that a schedule of this value exists."""
        if value_us is not None and value_us < self.claimed_us:
            self.witness_us = value_us

    def look_for_witness(self, problem: Problem, begin: Schedule) -> None:
        """Look for a schedule below the bound with the quick heuristics."""
        if self.is_over():
            return
        options = replace(self.remaining, without=self.options.without | _NO_PROOFS)
        found = self._search(problem, begin, self._best_us, options)
        self.note(found.value_us)

    def raise_bound(self, problem: Problem, begin: Schedule | None, limit_s: float) -> int:
        """Prove the claimed bound for one partition, as far as time allows."""
        reached_us = work_bound_us(relaxed_for_fusion(problem), problem.objective)
        until_s = min(self.clock.elapsed_s + limit_s, self.clock.limit_s)
        best_us = self._best_us
        while reached_us < self.claimed_us and not self.is_over():
            left_s = self.clock.left_s(until_s)
            if left_s <= 0:
                break
            options = replace(self.options, time_limit_s=left_s)
            found = self._search(problem, begin, best_us, options)
            self.note(found.value_us)
            reached_us = max(reached_us, found.lower_bound_us)
            if found.stopped_by == StoppedBy.INFEASIBLE:
                return self.claimed_us  # infeasible, so no schedule beats it
            if found.stopped_by != StoppedBy.GAP or found.value_us is None:
                break
            # A better schedule closed the gap before the bound was reached.
            begin, best_us = found.schedule, found.value_us
        return reached_us

    def _search(
        self, problem: Problem, begin: Schedule | None, best_us: int, options: SolveOptions
    ) -> Result:
        """Search until the gap is that between the best known schedule and the claimed bound."""

        def is_enough(incumbent: Incumbent) -> bool:
            self.note(incumbent.value_us)
            return self.is_over() or incumbent.lower_bound_us >= self.claimed_us

        ended = ConditionalStop(self.clock.stop, is_enough)
        gap = max(0.0, relative_gap(best_us, self.claimed_us))
        options = replace(options, gap=gap, hint=begin)
        watch = SolveWatch(ended.watch, ended)
        try:
            return solve(problem, options, watch)
        except SynthError:
            # The plan runs micro-batches out of order, which the search for a period excludes.
            return solve(problem, replace(options, hint=None), watch)
