"""Annealing of the best plans with offloads: ops, O and L change places, activations go or stay.

Several plans get a short round, and the best of them the rest of the time, as in sequential halving
(Karnin, Koren and Somekh, ICML 2013). Rounds are cold, as the plans are already good: hot ones lose
what the choice of moves has gained (see `synth.solver.improve.annealing`).
"""

from collections.abc import Callable
from typing import NamedTuple

from synth.plan.offload.bound_of_answer import has_guests, problem_key
from synth.plan.offload.offloaded import without_moves
from synth.plan.offload.published_offloads import OnFound
from synth.plan.tuning import OFFLOAD
from synth.schedule.model import Buffering
from synth.search.clock import Clock
from synth.solver.evaluate.evaluate import EvaluatedSchedule
from synth.solver.improve.annealing import Annealing
from synth.solver.improve.compiled_kernels import are_fast
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.tuning import ANNEALING

Rounds = tuple[tuple[float, float], ...]


class OffloadPlan(NamedTuple):
    """A schedule with offloads, and the problem that it solves."""

    problem: Problem
    found: EvaluatedSchedule


class PlanAnnealing:
    """The plans with offloads found so far, and the annealing of the best ones."""

    def __init__(self, options: SolveOptions, clock: Clock) -> None:
        self.options, self.clock = options, clock
        self._plans: list[OffloadPlan] = []
        self._annealings: dict[tuple[object, ...], Annealing] = {}

    def add(self, problem: Problem, found: EvaluatedSchedule) -> None:
        """Add a plan."""
        self._plans.append(OffloadPlan(problem, found))

    def best(self) -> list[OffloadPlan]:
        """Return the best plan of each placement and partition, the best one first."""
        self._plans.sort(key=lambda plan: plan.found.value_us)
        first: dict[tuple[object, ...], OffloadPlan] = {}
        for plan in self._plans:
            first.setdefault(problem_key(plan.problem), plan)
        return list(first.values())

    def run_rung(self, share: float, is_over: Callable[[], bool], on_found: OnFound) -> None:
        """Improve the best few plans for a share of the remaining time.

        Args:
            is_over: asked before each round.
            on_found: takes better plans.
        """
        few, until_s = self._able()[: OFFLOAD.few_plans], self.clock.moment_s(share)
        if not few or is_over() or not self._is_usable():
            return
        self.options.report_part(Part.ANNEALING)
        for plan, seconds in self.clock.shared(few, until_s):
            if seconds > 0 and not is_over():
                self._anneal(plan, seconds, OFFLOAD.rung_rounds, on_found)

    def run(self, is_over: Callable[[], bool], on_found: OnFound) -> None:
        """Improve the best few plans, and then the best one for the rest of the time."""
        if len(self._able()) > 1:
            self.run_rung(OFFLOAD.rung_share, is_over, on_found)
        if self._able() and not is_over() and self._is_usable():
            best, rounds = self._able()[0], OFFLOAD.long_rounds
            self._anneal(best, self.clock.left_s(), rounds, on_found)

    def _able(self) -> list[OffloadPlan]:
        """Return the best plans whose activations stay or move to the host."""
        return [
            plan
            for plan in self.best()
            if not has_guests(plan.found.schedule)
            and without_moves(plan.found.schedule).keeps_saved
        ]

    def _is_usable(self) -> bool:
        """Return True if annealing is compiled and allowed; wait for that if there is time."""
        options = self.options
        waits = options.deterministic or self.clock.left_s() >= ANNEALING.least_s_to_compile
        return Part.ANNEALING not in options.without and are_fast(
            waits=waits, should_stop=self.clock.is_over
        )

    def _anneal(self, plan: OffloadPlan, limit_s: float, rounds: Rounds, on_found: OnFound) -> None:
        """Anneal a plan for a time, or for as much effort."""
        problem, schedule, clock = plan.problem, plan.found.schedule, self.clock
        key = problem_key(problem)
        name = f"{plan.found.found_by.removesuffix(_ANNEALED)}{_ANNEALED}"
        if key not in self._annealings:
            self._annealings[key] = Annealing(
                problem, self.options.seed, name, moves_activations=True
            )
        annealing = self._annealings[key]
        annealing.found_by = name
        own = schedule.buffering
        longer = (Buffering(own.receive_ahead, behind) for behind in OFFLOAD.sends_behind)
        annealing.add(schedule.programs, [own, *longer])
        is_late = clock.deadline(limit_s)
        left = annealing.left_of(limit_s, clock, OFFLOAD.units_per_s)
        clock.grant(limit_s)
        for found in annealing.run_long(left, is_late, rounds):
            on_found(problem, found)


_ANNEALED = ", annealed"
