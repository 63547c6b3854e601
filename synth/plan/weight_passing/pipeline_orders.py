"""The orders of one pipeline in which a search over sharded state places collectives.

They are published ones, and those that the solver finds for one pipeline: with the least share of
state that any rank keeps (`least_share`), which also proves the bound, and under a memory limit
with the share of ZeRO-1.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace

from synth.families import generate_for
from synth.plan.tuning import SHARDED_PIPELINES
from synth.plan.weight_passing.least_share import one_of, with_least_share, with_share
from synth.schedule.files.certificate import ProvenBound
from synth.schedule.model import Schedule
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.bounds.closed_form import work_bound_us
from synth.solver.budget import Allowance
from synth.solver.infeasibility import may_fit, serial_schedule
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.solver.search_state import SearchState
from synth.solver.solver import solve
from synth.solver.watch import SolveWatch

_OVER = (StoppedBy.OPTIMAL, StoppedBy.GAP, StoppedBy.INFEASIBLE, StoppedBy.NOTHING_BETTER)


class PipelineOrders:
    """The orders of one pipeline, and the bound of all schedules of its data-parallel copies.

    Attributes:
        problem: one pipeline with the least share of state.
        may_fit: False if one micro-batch alone does not fit.
        work_bound: the lower bound that follows from the work of a rank.
    """

    def __init__(self, problem: Problem, order: Schedule | None) -> None:
        """Begin with the published orders, or with a given one alone.

        Args:
            problem: all pipelines, on the costs of whole stages.
            order: the only order, if the search should not choose it.
        """
        count = problem.num_replicas
        self.problem = one_of(problem, with_least_share(problem.costs, count))
        self._given, self.may_fit = order, may_fit(self.problem)
        self._searches: list[_OrderSearch] = []
        if order is None:
            self._searches.append(_OrderSearch(self.problem))
            if problem.caps_bytes is not None:
                zero_1 = with_share(problem.costs, count, Sharded.OPTIMIZER)
                self._searches.append(_OrderSearch(one_of(problem, zero_1)))
        work_us = work_bound_us(relaxed_for_fusion(self.problem), problem.objective)
        self.work_bound = ProvenBound.by_closed_forms(work_us)

    @property
    def is_infeasible(self) -> bool:
        """True if it is proven that nothing fits, whatever is sharded."""
        found = self._searches[0].result if self._searches else None
        is_proven = found is not None and found.stopped_by == StoppedBy.INFEASIBLE
        return is_proven or not self.may_fit

    @property
    def are_over(self) -> bool:
        """True if more time would find no other order."""
        return all(search.is_over for search in self._searches)

    def search(self, state: SearchState, allowance: Allowance) -> None:
        """Search orders for a share of the time, and raise the bound of all pipelines.

        Raises:
            RuntimeError: the bound is above a schedule, or excludes it: a bug.
        """
        left = [search for search in self._searches if self.may_fit and not search.is_over]
        seconds = SHARDED_PIPELINES.orders_share * max(allowance.left_s(), 0.0)
        for search in left:
            if state.finished():
                return
            options = replace(state.options, time_limit_s=seconds / len(left))
            found = search.run(options, state.budget.stop)
            if state.budget.is_deterministic:
                allowance.spend(options.time_limit_s)
            if search.problem is self.problem:
                _raise_bound(state, found)

    def published(self) -> Iterator[tuple[str, Schedule]]:
        """Return the published orders of the placement with their names, or the given order."""
        one, given = self.problem, self._given
        if given is not None:
            return iter([(given.name, given)])
        made = generate_for(one.placement, one.num_micro_batches, one.costs, one.caps_bytes)
        return ((name, schedule) for name, schedule in made if schedule.keeps_saved)

    def all(self) -> Iterator[tuple[str, Schedule]]:
        """Yield the orders found so far, best first, the published ones, and the serial one."""
        for search in self._searches:
            for found in reversed(search.found):
                yield found.found_by, found.schedule
        yield from self.published()
        if self._given is None:
            yield "serial", serial_schedule(self.problem)


def _raise_bound(state: SearchState, found: Result) -> None:
    """Take the bound of one pipeline with the least share as that of all pipelines."""
    is_infeasible = found.stopped_by == StoppedBy.INFEASIBLE
    best = state.best
    if best is not None and (is_infeasible or found.lower_bound_us > best.value_us):
        raise RuntimeError(
            f"the bound of one pipeline, {found.lower_bound_us} µs, excludes a schedule of "
            f"{best.value_us} µs of all pipelines: a bug in the least share of state"
        )
    if found.certificate is not None and not is_infeasible:
        state.raise_bound(ProvenBound(found.lower_bound_us, found.certificate))


class _OrderSearch:
    """The solver's search for orders of one pipeline, on costs with a share of the state."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.found: list[Incumbent] = []
        self.result: Result | None = None

    def run(self, options: SolveOptions, stop: threading.Event) -> Result:
        """Search on, from the best order so far."""
        if self.result is not None:
            options = options.going_on_from(self.result)
        self.result = solve(self.problem, options, SolveWatch(self._note, stop))
        return self.result

    def _note(self, found: Incumbent) -> None:
        """Keep the last orders, each once: it is announced again with a better bound."""
        if self.found and self.found[-1].schedule.programs == found.schedule.programs:
            self.found.pop()
        self.found.append(found)
        del self.found[: -SHARDED_PIPELINES.orders_kept]

    @property
    def is_over(self) -> bool:
        """True if more time would find no other bound."""
        return self.result is not None and self.result.stopped_by in _OVER
