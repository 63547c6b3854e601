"""List scheduling as a step: under the safe memory model of each buffering, evaluated exactly.

Micro-batches begin as soon as a rule lets them, or from release dates on (`release_dates`).
"""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from synth.schedule.model import SMALLEST_BUFFERING, Buffering
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.improve.improver import SearchContext
from synth.solver.improve.list_builders import list_builder
from synth.solver.improve.list_scheduling import search
from synth.solver.improve.release_dates import at_release_dates
from synth.solver.infeasibility import SERIAL
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import distinct, safe_memory
from synth.solver.modulo import modulo_search
from synth.solver.options import Part
from synth.solver.search_state import SearchState
from synth.solver.tuning import LIST_SCHEDULING, RELEASE_DATES


class ListSchedulingStep:
    """List scheduling, briefly for every buffering or thoroughly for the best ones."""

    part: ClassVar[Part] = Part.LIST_SCHEDULING

    def __init__(self, context: SearchContext) -> None:
        self.state, self._num_ops = context.state, context.fusion_relaxed.num_ops
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
        """Schedule with little effort for every buffering, with no buffers at all first.

        A search that goes on from the schedule of another one seldom gains by it.
        """
        most_ops = LIST_SCHEDULING.quick_ops_per_op * self._num_ops
        max_ops = min(LIST_SCHEDULING.quick_ops, most_ops)
        bufferings = (SMALLEST_BUFFERING, *BUFFERINGS)
        goes_on = self.state.options.hint is not None
        share = LIST_SCHEDULING.quick_share_of_left if goes_on else 1.0
        _run(self.state, max_ops, bufferings, RELEASE_DATES.quick_orders, share)

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


def _run(
    state: SearchState,
    max_ops: int,
    bufferings: Sequence[Buffering],
    most_dated: int | None = None,
    share_of_left: float = 1.0,
) -> None:
    instances = distinct(safe_memory(state.problem, buffering) for buffering in bufferings)
    budget = state.budget
    end_s = budget.elapsed_s + share_of_left * (budget.left_s() - 2 * budget.evaluation_s)
    for index, instance in enumerate(instances):
        if state.poll():
            return
        share_s = (end_s - budget.elapsed_s) / (len(instances) - index)
        num_ops = max_ops // min(LIST_SCHEDULING.most_models, len(instances))
        dated_share = RELEASE_DATES.share_per_s * budget.time_limit_s / len(instances)
        dated_share = min(1.0, max(RELEASE_DATES.least_share, dated_share))
        _run_in(state, instance, num_ops, dated_share, most_dated, budget.elapsed_s + share_s)


def _run_in(
    state: SearchState,
    instance: Instance,
    max_ops: int,
    dated_share: float,
    most_dated: int | None,
    until_s: float,
) -> None:
    """Schedule one instance until a moment since the start.

    A deterministic search waits for compiled code.

    Args:
        dated_share: of the effort for orders from release dates on.
        most_dated: number of these orders; None: as many as the effort allows.
    """
    budget = state.budget

    def should_stop() -> bool:
        return state.poll() or budget.is_late(until_s)

    builder = list_builder(
        instance,
        state.problem.objective,
        waits=budget.is_deterministic,
        should_stop=state.poll,
        must_stop=partial(_must_stop, state),
    )
    found = search(builder, max_ops, state.options.seed, should_stop)
    if not budget.is_late(until_s):
        found += at_release_dates(builder, state.options.seed, should_stop, dated_share, most_dated)
        found.sort(key=lambda one: one.value_us)
    orders = [builder.scored(one) for one in found[: LIST_SCHEDULING.orders_evaluated]]
    if orders:
        state.pool.add(orders[0].programs(instance))
    for scored in orders[: 1 if budget.time_is_up() else None]:
        if not state.improves(scored.value_us):
            break
        state.try_programs(scored.programs(instance), "list scheduling", scored.value_us)


def _must_stop(state: SearchState) -> bool:
    """Return True if a schedule that is begun may not be finished.

    If only the serial schedule is known, the first other one is worth a moment beyond the limit.
    """
    if state.best is None or state.best.found_by == SERIAL:
        return state.budget.stop.is_set()
    return state.budget.time_is_up()


IMPROVER = ListSchedulingStep
