"""The state of a search: incumbent, lower bound, pool of orders, and reports of progress."""

from collections.abc import Sequence
from functools import cached_property

from synth.schedule.files.certificate import NOTHING_PROVEN, Certificate, ProvenBound
from synth.schedule.ops import Op
from synth.search.outcome import StoppedBy
from synth.solver.background import Background
from synth.solver.budget import Budget
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate_order
from synth.solver.evaluate.scenarios import ScenarioFactors
from synth.solver.instance.instance import Instance
from synth.solver.instance.timing import Programs, ScoredPrograms, TimedOrders
from synth.solver.options import SolveOptions
from synth.solver.order_pool import OrderPool
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Incumbent, Result
from synth.solver.stop_rule import BestKnown, StopRule
from synth.solver.tuning import SEARCH
from synth.solver.watch import UNWATCHED, SolveWatch


class SearchState:
    """Incumbent, lower bound and known orders of one search, within its budget.

    Attributes:
        budget: time and stop.
        best: the incumbent, None before the first. Only `offer` and `refine` change it.
        proven: the best lower bound with its certificate.
        proven_infeasible: True if no schedule keeps the caps.
        pool: orders found so far, from which models and heuristics begin.
        baselines: published schedules, fitting or not.
        short_instance_share: the share of the time limit spent on a short instance; its schedules
            are so good that others only count if they are clearly better.
    """

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        watch: SolveWatch = UNWATCHED,
        within: "SearchState | None" = None,
    ) -> None:
        """Begin a search.

        Args:
            within: the search that this one serves and with which it ends.
        """
        self.problem, self.options, self._within = problem, options, within
        self.budget = Budget(options, watch.stop)
        self._stop_rule = StopRule(self.budget, options.gap)
        self.best: EvaluatedSchedule | None = None
        self.proven = NOTHING_PROVEN
        self.proven_infeasible = False
        self.pool = OrderPool(problem.objective)
        self.baselines: list[Baseline] = []
        self.short_instance_share = 0.0
        self._background: Background | None = None
        self._on_improvement = watch.on_improvement
        self._reported_bound_us = 0

    @property
    def is_within(self) -> bool:
        """True if the search serves another one."""
        return self._within is not None

    # End of the search

    def finished(self) -> bool:
        """Return True if the search should end: proven, close enough, stopped, or out of time."""
        if self._within is not None and self._within.finished():
            return True
        return self._stop_rule.is_met(self._known)

    def poll(self) -> bool:
        """Take in bounds proven in the background, then return `finished()`."""
        self.take_bounds()
        return self.finished()

    def is_proven(self) -> bool:
        """Return True if the incumbent meets the bound."""
        return self._known.is_optimal

    def reason(self) -> StoppedBy:
        """Return why the search ends now."""
        return self._stop_rule.reason(self._known)

    @property
    def _known(self) -> BestKnown:
        value_us = None if self.best is None else self.best.value_us
        return BestKnown(value_us, self.bound_us, self.proven_infeasible)

    def result(self, stopped_by: StoppedBy, message: str | None = None) -> Result:
        """Return the answer.

        Args:
            message: the reason why there is no schedule, if a proof says so.
        """
        best = self.best
        if best is None and message is None:
            message = "no schedule was found in the time given; allow more time or more memory"
            if stopped_by == StoppedBy.INFEASIBLE:
                message = "no schedule is within the memory limits: proven by a complete search"
        return Result.of(
            self.problem,
            best,
            lower_bound_us=self.bound_us,
            stopped_by=stopped_by,
            baselines=tuple(self.baselines),
            wall_s=self.budget.elapsed_s,
            message=message,
            certificate=self.proven.certificate,
        )

    # The incumbent

    def offer(self, candidate: EvaluatedSchedule | None) -> None:
        """Take a schedule as the incumbent if it is faster, or as fast in less memory."""
        if candidate is None:
            return
        if self.best is None or _rank_key(candidate) < _rank_key(self.best):
            self._check(candidate.value_us, self.proven)
            self.best = candidate
            self._report()

    def refine(self, refined: EvaluatedSchedule) -> None:
        """Replace the incumbent by a schedule that is no slower; report it if it is faster."""
        if self.best is None or refined.value_us > self.best.value_us:
            raise RuntimeError(f"{refined.found_by}: {refined.value_us} µs refines no incumbent")
        is_faster = refined.value_us < self.best.value_us
        self.best = refined
        if is_faster:
            self._report()

    def try_programs(self, programs: Programs, found_by: str, value_us: int) -> None:
        """Evaluate programs exactly, with as many bufferings as there is time for.

        Args:
            value_us: the objective if no transfer waits for a buffer; no buffering does better.
        """
        should_stop = self.budget.time_is_up
        self.offer(evaluate_order(self.problem, programs, found_by, value_us, should_stop))

    def try_scored(self, scored: ScoredPrograms) -> None:
        """Remember programs, and evaluate them exactly if they are better in the model's terms."""
        self.pool.add(scored.programs)
        if self.improves(scored.value_us):
            self.try_programs(scored.programs, scored.found_by, scored.value_us)

    def try_timing(self, instance: Instance, timing: TimedOrders, found_by: str) -> None:
        """Evaluate a model's solution exactly, if it is better in the model's terms."""
        value_us = timing.value_us(instance, self.problem.objective)
        if self.improves(value_us):
            self.try_programs(timing.programs(instance), found_by, value_us)

    def improves(self, value_us: int) -> bool:
        """Return True if a value is below the incumbent's."""
        return self.best is None or value_us < self.best.value_us

    @property
    def best_programs(self) -> Sequence[Sequence[Op]] | None:
        """The incumbent's programs."""
        return None if self.best is None else self.best.schedule.programs

    @cached_property
    def scenario_factors(self) -> ScenarioFactors:
        """The factors of the duration scenarios in which the last steps judge schedules."""
        return ScenarioFactors(self.problem)

    # The bound

    @property
    def bound_us(self) -> int:
        """The best lower bound."""
        return self.proven.bound_us

    def listen_to(self, background: Background) -> None:
        """Let `take_bounds` take in the bounds of a thread."""
        self._background = background

    def take_bounds(self) -> None:
        """Take in the bounds proven in the background since the last call."""
        if self._background is not None:
            self._background.collect(self.raise_bound)
        if self._within is not None:
            self._within.take_bounds()

    def raise_bound(self, proven: ProvenBound) -> None:
        """Take a bound if it is better; report it unless it is better by very little.

        None where schedules may take less than models say, and be below it.
        """
        bound_us = proven.bound_us
        if bound_us > self.bound_us and not self.problem.times_r_late:
            if self.best is not None and bound_us > self.best.value_us:
                self._check(self.best.value_us, proven)
                bound_us = self.best.value_us
            self.proven = proven._replace(bound_us=bound_us)
            reported_us = SEARCH.reported_bound_factor * self._reported_bound_us
            if self.is_proven() or bound_us > reported_us:
                self._report()

    def _check(self, value_us: int, proven: ProvenBound) -> None:
        """Raise RuntimeError if a schedule is below a bound.

        With several copies it may be: bounds are over schedules that share micro-batches evenly.
        Where R is a part of B it may be, too: R needs no memory for the gradient.
        """
        is_exact = self.problem.num_replicas == 1 and self.problem.merged is None
        if value_us < proven.bound_us and is_exact:
            raise RuntimeError(
                f"the bound {proven.bound_us} µs is above a schedule of {value_us} µs: a bug in "
                f"{proven.certificate.words if proven.certificate else 'a prover'}"
            )

    def deny(self, certificate: Certificate) -> None:
        """Note a proof that no schedule keeps the caps; the bound stays valid."""
        self.proven_infeasible = True
        self.proven = self.proven._replace(certificate=certificate)

    def _report(self) -> None:
        best = self.best
        self._reported_bound_us = self.bound_us
        if best is not None and self._on_improvement is not None:
            self._on_improvement(
                Incumbent(
                    self.problem,
                    self.budget.elapsed_s,
                    best.schedule,
                    best.timeline,
                    best.value_us,
                    self.bound_us,
                    best.found_by,
                    best.peak_bytes,
                    certificate=self.proven.certificate,
                )
            )


def _rank_key(candidate: EvaluatedSchedule) -> tuple[int, int]:
    """The key that orders candidates, smaller first: value, then the highest peak."""
    return candidate.value_us, max(candidate.peak_bytes)
