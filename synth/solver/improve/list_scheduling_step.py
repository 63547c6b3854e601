"""List scheduling as a step: under the safe memory model of each buffering, evaluated exactly.

Micro-batches begin as soon as a rule lets them, or at a uniform interval (`uniform_intervals`).
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from synth.schedule.model import SMALLEST_BUFFERING, Buffering
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.improve import list_scheduling
from synth.solver.improve.compiled_kernels import are_usable
from synth.solver.improve.compiled_lists import CompiledBuilder
from synth.solver.improve.improver import SearchContext
from synth.solver.improve.uniform_intervals import at_uniform_intervals
from synth.solver.infeasibility import SERIAL
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import distinct, safe_memory
from synth.solver.instance.timing import ScoredOrders
from synth.solver.modulo import modulo_search
from synth.solver.options import Part
from synth.solver.search_state import SearchState
from synth.solver.tuning import LIST_SCHEDULING, UNIFORM_INTERVALS


class ListSchedulingStep:
    """List scheduling, briefly for every buffering or thoroughly for the best ones."""

    part: ClassVar[Part] = Part.LIST_SCHEDULING

    def __init__(self, context: SearchContext) -> None:
        self.state = context.state
        # Modulo schedules of several micro-batches follow, which are better starts.
        self.precedes_modulo = modulo_search.follows(context.fusion_relaxed, self.state.options)

    def run(self, share: float, *, is_brief: bool) -> None:
        """Schedule with a number of ops that depends on the time limit, or a small one."""
        self.state.options.report_part(self.part)
        if is_brief:
            self._run_quick()
        else:
            self._run_thorough()

    def _run_quick(self) -> None:
        """Schedule with little effort for every buffering, with no buffers at all first."""
        _run(self.state, LIST_SCHEDULING.quick_ops, (SMALLEST_BUFFERING, *BUFFERINGS))

    def _run_thorough(self) -> None:
        """Schedule with the incumbent's buffering and the usual one."""
        per_s = (
            LIST_SCHEDULING.ops_per_s_before_modulo
            if self.precedes_modulo
            else LIST_SCHEDULING.ops_per_s
        )
        best = self.state.best
        bufferings = BUFFERINGS if best is None else (best.schedule.buffering, BUFFERINGS[0])
        _run(self.state, round(per_s * self.state.budget.time_limit_s), bufferings)


def _run(state: SearchState, max_ops: int, bufferings: Sequence[Buffering]) -> None:
    instances = distinct(safe_memory(state.problem, buffering) for buffering in bufferings)
    budget = state.budget
    for index, instance in enumerate(instances):
        if state.poll():
            return
        share_s = (budget.left_s() - 2 * budget.evaluation_s) / (len(instances) - index)
        num_ops = max_ops // min(LIST_SCHEDULING.most_models, len(instances))
        _run_in(state, instance, num_ops, budget.elapsed_s + share_s)


def _run_in(state: SearchState, instance: Instance, max_ops: int, until_s: float) -> None:
    """Schedule one instance until a moment since the start."""
    budget = state.budget
    found = list_scheduling.search(
        instance,
        state.problem.objective,
        max_ops,
        state.options.seed,
        lambda: state.poll() or budget.is_late(until_s),
        partial(_must_stop, state),
    )
    orders = [scored for scored, _ in found]
    if not budget.is_late(until_s):
        orders += _at_uniform_intervals(state, instance, until_s)
        orders.sort(key=lambda scored: scored.value_us)
    if orders:
        state.pool.add(orders[0].programs(instance))
    for scored in orders[: 1 if budget.time_is_up() else LIST_SCHEDULING.orders_evaluated]:
        if not state.improves(scored.value_us):
            break
        state.try_programs(scored.programs(instance), "list scheduling", scored.value_us)


def _at_uniform_intervals(
    state: SearchState, instance: Instance, until_s: float
) -> list[ScoredOrders]:
    """Return orders at uniform intervals, of more intervals if kernels are compiled.

    A deterministic search waits for these.
    """
    objective = state.problem.objective

    def should_stop() -> bool:
        return state.poll() or state.budget.is_late(until_s)

    if are_usable(waits=state.budget.is_deterministic, should_stop=state.poll):
        builder = CompiledBuilder(instance, objective)
        return builder.best_at_uniform_intervals(LIST_SCHEDULING.orders_evaluated, should_stop)
    plain = list_scheduling.Builder(instance, objective, partial(_must_stop, state))
    return at_uniform_intervals(instance, plain.build, UNIFORM_INTERVALS.most_ops, should_stop)


def _must_stop(state: SearchState) -> bool:
    """Return True if a schedule that is begun may not be finished.

    If only the serial schedule is known, the first other one is worth a moment beyond the limit.
    """
    if state.best is None or state.best.found_by == SERIAL:
        return state.budget.stop.is_set()
    return state.budget.time_is_up()


IMPROVER = ListSchedulingStep
