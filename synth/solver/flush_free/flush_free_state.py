"""The state of a search without a flush: the best schedule, its bounds, and published ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.rank_memory import exceeds_caps
from synth.schedule.steady_state import least_micro_batches, steady_us
from synth.schedule.version_facts import largest_versions
from synth.search.outcome import StoppedBy, reason_of_end
from synth.solver.budget import Budget
from synth.solver.evaluate.evaluate import BUFFERINGS, EvaluatedSchedule, evaluate
from synth.solver.flush_free.bounds import any_order_us, closed_form_us, makespan_us
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.infeasibility import may_fit, needed_bytes
from synth.solver.instance.instance import Instance
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.options import Part, SolveOptions
from synth.solver.result import Incumbent, Result, SteadyBaseline, SteadyProof
from synth.solver.tuning import FLUSH_FREE
from synth.solver.watch import SolveWatch
from synth.units import format_bytes_both

# Of floats that are divided by the ticks of a microsecond and multiplied again.
ROUNDING = 1e-9


@dataclass(frozen=True)
class ModelledOrder:
    """An order that repeats with every micro-batch, and the memory model that it is from."""

    order: CyclicSchedule
    instance: Instance
    is_relaxed: bool


@dataclass(frozen=True)
class SteadySchedule:
    """A verified schedule, its time of a micro-batch, and the model that it is from, if any."""

    evaluated: EvaluatedSchedule
    us: float
    modelled: ModelledOrder | None = None

    @property
    def rank_key(self) -> tuple[float, int]:
        """The key that orders schedules: the time, then the makespan."""
        return self.us, self.evaluated.timeline.makespan_us


class FlushFreeState:
    """The best schedule and the bounds of a search, within its budget.

    Attributes:
        best: the best verified schedule within the limits, None before the first.
        closed_form_us: a bound of all orders, at most as large. The search of several micro-batches
            per interval begins there: at the larger one itself its models are the hardest.
        repeating_us: the lower bound on orders that repeat with every micro-batch; infinity if none
            fits.
        ticks_per_us: ticks per microsecond; a tick is far below any gap that matters.
    """

    def __init__(
        self, flush_free: FlushFreeProblem, options: SolveOptions, watch: SolveWatch
    ) -> None:
        # No time is kept for robustness, which this search has not.
        whole = replace(options, without=options.without | {Part.ROBUSTNESS})
        self.flush_free, self.options, self.budget = flush_free, options, Budget(whole, watch.stop)
        self._on_improvement = watch.on_improvement
        self.best: SteadySchedule | None = None
        self._baselines: list[SteadyBaseline] = []
        self.lower_bound_us = self.repeating_us = any_order_us(flush_free)
        self._makespan_bound_us = makespan_us(flush_free)
        self._least_micro_batches = 0
        self.closed_form_us = closed_form_us(flush_free)
        precise = FLUSH_FREE.ticks_per_interval / max(1.0, self.closed_form_us)
        self.ticks_per_us = max(1, math.ceil(precise))

    def is_within(self, bound_us: float) -> bool:
        """True if the best schedule is within the gap of a bound."""
        return self.best is not None and self._gap(bound_us) <= self.options.gap

    def _gap(self, bound_us: float) -> float:
        """The relative gap; a time less than a tick above the bound is at it."""
        if self.best is None:
            return 1.0
        above_us = self.best.us - bound_us
        is_met = above_us * self.ticks_per_us <= 1 + ROUNDING
        return 0.0 if is_met else above_us / self.best.us

    def raise_repeating(self, us: float) -> None:
        """Take a bound of orders that repeat with every micro-batch.

        Infinity is no bound of a schedule that is known, which need not repeat so.
        """
        if us < math.inf or self.best is None:
            self.repeating_us = max(self.repeating_us, us)

    # Schedules

    def add_baseline(self, schedule: Schedule) -> None:
        """Judge a published schedule, and take it if it fits."""
        caps = self.flush_free.problem.caps_bytes
        judged = evaluate(
            replace(self.flush_free.problem, caps_bytes=None), schedule, schedule.name
        )
        if judged is None:
            return
        us, facts = steady_us(judged.timeline), largest_versions(judged.timeline.lowered)
        peaks, fits = judged.peak_bytes, not exceeds_caps(judged.peak_bytes, caps)
        self._baselines.append(
            SteadyBaseline(schedule.name, us, facts.delay, facts.alive, peaks, fits)
        )
        if us is not None and fits and self._can_go_on(us):
            self._take(SteadySchedule(judged, us))

    def offer_order(self, modelled: ModelledOrder) -> float:
        """Evaluate an order of a model, as `offer` does."""
        interval_us = modelled.order.interval / self.ticks_per_us
        programs = modelled.order.unrolled(modelled.instance).programs(modelled.instance)
        return self.offer(programs, interval_us, modelled)

    def offer(
        self,
        programs: Sequence[Sequence[Op]],
        interval_us: float,
        modelled: ModelledOrder | None = None,
    ) -> float:
        """Evaluate programs with the buffering that is best for them, and take them if better.

        Args:
            programs: F, B, W and BW of all micro-batches, by rank.
            interval_us: the time of a micro-batch if no transfer waits.

        Returns:
            Their time of a micro-batch; infinity if they do not fit, or are never full.
        """
        least_us, longest = math.inf, max(map(len, programs))
        for buffering in (*BUFFERINGS, Buffering(longest, longest)):
            schedule = self.flush_free.schedule(programs, buffering)
            judged = evaluate(self.flush_free.problem, schedule, "modulo scheduling")
            if judged is None:
                continue
            us = steady_us(judged.timeline)
            if us is None:
                least = least_micro_batches(judged.timeline.lowered)
                self._least_micro_batches = max(self._least_micro_batches, least)
                break
            if not self._can_go_on(us):
                continue
            least_us = min(least_us, us)
            self._take(SteadySchedule(judged, us, modelled))
            if us <= interval_us * (1 + ROUNDING):
                break
        return least_us

    def _can_go_on(self, us: float) -> bool:
        """True unless a time is below the bound of all orders.

        Then the order fits only because the plan has few updates: if it went on, more versions
        would be stashed.
        """
        return us >= self.lower_bound_us * (1 - ROUNDING)

    def _take(self, found: SteadySchedule) -> None:
        """Take a schedule as the best if it is."""
        if self.best is not None and found.rank_key >= self.best.rank_key:
            return
        is_faster = self.best is None or found.us < self.best.us
        self.best = found
        if is_faster and self._on_improvement is not None:
            self._on_improvement(self._incumbent(found))

    # The answer

    def _proof(self, found: SteadySchedule) -> SteadyProof:
        us = max(found.us, self.lower_bound_us)  # but for rounding
        return SteadyProof(us, self.lower_bound_us, self.repeating_us, tuple(self._baselines))

    def _incumbent(self, found: SteadySchedule) -> Incumbent:
        one = found.evaluated
        return Incumbent(
            self.flush_free.problem,
            self.budget.elapsed_s,
            one.schedule,
            one.timeline,
            one.value_us,
            self._makespan_bound_us,
            one.found_by,
            one.peak_bytes,
            steady=self._proof(found),
        )

    def result(self) -> Result:
        """The answer of a search that ends now."""
        one = None if self.best is None else self.best.evaluated
        return Result.of(
            self.flush_free.problem,
            one,
            lower_bound_us=self._makespan_bound_us,
            stopped_by=self._reason(),
            baselines=(),
            wall_s=self.budget.elapsed_s,
            message=self._why_none(),
            steady=None if self.best is None else self._proof(self.best),
        )

    def _reason(self) -> StoppedBy:
        if self.repeating_us == math.inf:
            return StoppedBy.NOTHING_BETTER if self._is_only_repeating else StoppedBy.INFEASIBLE
        if self._gap(self.lower_bound_us) == 0:  # but for rounding
            return StoppedBy.OPTIMAL
        return reason_of_end(
            None if self.best is None else self.best.us,
            self.lower_bound_us,
            self.options.gap,
            is_interrupted=self.budget.stop.is_set(),
            is_exhausted=not self.budget.is_over(),
        )

    @property
    def _is_only_repeating(self) -> bool:
        """True if a refutation is only of orders that repeat with every micro-batch.

        With the other rules one micro-batch at a time needs the least memory of all orders, and
        repeats. With two versions that is not proven.
        """
        is_two = self.flush_free.consistency == Consistency.TWO_VERSIONS
        return is_two and may_fit(self.flush_free.problem)

    def _why_none(self) -> str | None:
        """The reason why there is no schedule; None if there is one."""
        if self.best is not None:
            return None
        if self.repeating_us == math.inf:
            return why_infeasible(self.flush_free, is_only_repeating=self._is_only_repeating)
        m = self.flush_free.problem.num_micro_batches
        if self._least_micro_batches > m:
            return (
                f"{m} micro-batches are too few: the pipeline is never full for a whole "
                f"repetition; give §micro_batches {self._least_micro_batches} or more"
            )
        return "no schedule was found in the time given; allow more §time_limit or §mem_limit"


def why_infeasible(flush_free: FlushFreeProblem, *, is_only_repeating: bool) -> str:
    """Name a rank that cannot hold one micro-batch at a time, and a sufficient memory limit.

    Args:
        is_only_repeating: only orders that repeat with every micro-batch were refuted.
    """
    problem, is_doubled = flush_free.problem, flush_free.consistency == Consistency.TWO_VERSIONS
    needed = [*needed_bytes(problem)]
    for rank, held in enumerate(problem.placement.held):
        stages = (problem.costs.stages[stage] for stage, _ in held)
        needed[rank] += is_doubled * sum(stage.parameter_bytes for stage in stages)
    caps = problem.caps_bytes or (0,) * len(needed)
    rank = max(range(len(needed)), key=lambda r: needed[r] - caps[r])
    two = " and two versions of its weights" if is_doubled else ""
    which = "order that repeats with every micro-batch" if is_only_repeating else "schedule"
    return (
        f"no {which} fits with §versions {flush_free.name}: rank {rank} needs "
        f"{format_bytes_both(needed[rank])} for one micro-batch at a time{two}, and its memory "
        f"limit is {format_bytes_both(caps[rank])}; give §mem_limit {max(needed)}B, more ranks, a "
        f"smaller micro-batch, or §recompute layers:…"
    )
