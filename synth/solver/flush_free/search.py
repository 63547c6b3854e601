"""The search without a flush: modulo scheduling with the least initiation interval.

Orders that repeat with every micro-batch are searched first. If an interval is feasible, so is
every longer one, because the order can pause once in each interval. So the least interval lies
between the refuted and the found ones, and bisection narrows the gap. Under the relaxed memory
model a refutation is a lower bound for these orders.

List scheduling counts versions and activations as one memory (`list_orders`).

Orders that repeat after several micro-batches can be faster: with K in flight, the ops of a
micro-batch that returns exactly K intervals later may collide with each other on a rank. If ranks
hold one stage each, such orders come from the models of the search with a flush.

All orders are unrolled, verified and simulated, and the simulated time counts.
"""

import math
import random
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter

from synth.solver.cpsat.run import decide_by_relaxation
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.flush_free.flush_free_model import flush_free_model
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.flush_free.flush_free_state import ROUNDING, FlushFreeState, ModelledOrder
from synth.solver.flush_free.list_orders import ListOrder, fused, list_orders, num_tried
from synth.solver.flush_free.several_per_interval import with_early_weights, with_versions
from synth.solver.infeasibility import may_fit
from synth.solver.instance.instance import BW, B, Instance
from synth.solver.instance.memory_models import distinct, relaxed_memory, safe_memory
from synth.solver.modulo import modulo_search
from synth.solver.modulo.recurrent_job_shop import RecurrentJobShop
from synth.solver.options import Part, SolveOptions
from synth.solver.result import Result
from synth.solver.tuning import FLUSH_FREE
from synth.solver.watch import UNWATCHED, SolveWatch


def solve_flush_free(
    flush_free: FlushFreeProblem, options: SolveOptions | None = None, watch: SolveWatch = UNWATCHED
) -> Result:
    """Find the order with the least time of a micro-batch while the pipeline is full.

    The schedule is finite: it fills, repeats and drains. It is verified against the memory limits,
    which count the versions, and never slower than a published schedule of the same rule that fits.
    The result's `steady` has the time and its bounds; `value_us` and `lower_bound_us` are those of
    the whole schedule's makespan.
    """
    state = FlushFreeState(flush_free, options or SolveOptions(), watch)
    return _FlushFreeSearch(state).run()


class _FlushFreeSearch:
    def __init__(self, state: FlushFreeState) -> None:
        self.state, self.flush_free, self.budget = state, state.flush_free, state.budget

    def run(self) -> Result:
        """Evaluate the published schedules, prove bounds, and search for orders that reach them."""
        state, problem = self.state, self.flush_free.problem
        if not may_fit(problem):
            state.raise_repeating(math.inf)
            return state.result()
        for schedule in self.flush_free.published():
            state.add_baseline(schedule)
        self._narrow(relaxed_memory(problem), is_relaxed=True)
        if state.repeating_us == math.inf:
            return state.result()
        for instance in distinct(safe_memory(problem, each) for each in BUFFERINGS):
            if state.is_within(state.repeating_us):
                break
            self._narrow(instance, is_relaxed=False)
        self._compact()
        if Part.LIST_SCHEDULING not in state.options.without:
            self._try_list_orders()
        if Part.MODULO not in state.options.without:
            self._try_several_per_interval()
        return state.result()

    # One micro-batch per interval

    def _narrow(self, instance: Instance, *, is_relaxed: bool) -> None:
        """Bisect between the longest refuted interval and the shortest found one."""
        state, ticks_per_us = self.state, self.state.ticks_per_us
        low = math.ceil(state.repeating_us * ticks_per_us * (1 - ROUNDING)) - 1
        high = longest = self._longest(instance)
        # The bound itself is often reached.
        tries = [low + 1]
        if state.best is None:
            tries.append(high)
        else:
            high = min(high, math.ceil(state.best.us * ticks_per_us))
        while high - low > 1 and not self._is_over() and not state.is_within(state.repeating_us):
            interval = tries.pop(0) if tries else (low + high) // 2
            model = self._model(instance, interval, is_relaxed=is_relaxed)
            found, _, is_refuted = decide_by_relaxation(
                model.cp, self._seconds, state.options.seed, self._is_over
            )
            if found is not None:
                us = state.offer_order(ModelledOrder(model.ops.read(found), instance, is_relaxed))
                high = interval if us == math.inf else min(interval, math.ceil(us * ticks_per_us))
                continue
            low = interval
            if is_relaxed and is_refuted:
                state.raise_repeating(math.inf if interval >= longest else interval / ticks_per_us)
            if interval >= longest:
                return

    @property
    def _seconds(self) -> float:
        return min(FLUSH_FREE.decide_s, max(0.0, self.budget.left_s()))

    def _longest(self, instance: Instance) -> int:
        """An interval in ticks in which a single micro-batch passes the whole pipeline."""
        us = 0.0
        for copy in instance.copies:
            times = copy.duration_us
            us += copy.down_us + copy.up_us + copy.work_us + max(0, times[BW] - times[B])
            us += self.flush_free.step_us(copy.stage)
        return math.ceil(us * self.state.ticks_per_us) + len(instance)

    def _model(self, instance: Instance, interval: int, *, is_relaxed: bool) -> RecurrentJobShop:
        ticks_per_us = self.state.ticks_per_us
        return flush_free_model(
            self.flush_free, instance, interval, ticks_per_us, is_relaxed=is_relaxed
        )

    def _is_over(self) -> bool:
        return self.budget.is_over()

    def _compact(self) -> None:
        """Start the ops of the best order as early as its interval allows."""
        best = self.state.best
        if best is None or best.modelled is None or self._is_over():
            return
        known = best.modelled
        model = self._model(known.instance, known.order.interval, is_relaxed=known.is_relaxed)
        model.begin_soon(known.order)
        found = decide_by_relaxation(
            model.cp, FLUSH_FREE.compact_s, self.state.options.seed, self._is_over
        ).found
        if found is not None:
            order = model.ops.read(found)
            self.state.offer_order(ModelledOrder(order, known.instance, known.is_relaxed))

    # List scheduling

    def _try_list_orders(self) -> None:
        """Evaluate the orders of random policies that look better than the best known."""
        state, problem = self.state, self.flush_free.problem
        whole = safe_memory(problem, BUFFERINGS[0])
        if not modulo_search.applies(whole) or state.is_within(state.lower_bound_us):
            return
        allowance = self.budget.allow(FLUSH_FREE.list_share * self.budget.left_s())
        rng = random.Random(state.options.seed)
        found: list[ListOrder] = []
        for instance in distinct([relaxed_memory(problem), whole]):
            orders = list_orders(self.flush_free, instance, rng)
            for order in islice(orders, num_tried(problem.num_ops) // 2):
                allowance.spend(FLUSH_FREE.list_s_per_op * problem.num_ops)
                if allowance.is_over() or self._is_over():
                    break
                found += [] if order is None else [order]
        self._offer_best(sorted(dict.fromkeys(found), key=attrgetter("us")))

    def _offer_best(self, orders: Sequence[ListOrder]) -> None:
        """Evaluate the best orders that the limits allow, among not too many that they refuse."""
        state, num_left = self.state, FLUSH_FREE.most_list_orders
        for order in orders[: FLUSH_FREE.most_list_orders_refused]:
            is_worse = state.best is not None and order.us >= state.best.us
            if not num_left or self._is_over() or is_worse:
                return
            fits = state.offer(order.programs, order.us) < math.inf
            fits |= state.offer(fused(order.programs), order.us) < math.inf
            num_left -= fits

    # Several micro-batches per interval

    def _try_several_per_interval(self) -> None:
        """Look for orders that repeat after several micro-batches, with more or fewer versions."""
        state, whole = self.state, safe_memory(self.flush_free.problem, BUFFERINGS[0])
        if not modulo_search.applies(whole):
            return
        tries = [*with_versions(self.flush_free, whole)]
        if not tries:
            return
        seconds = FLUSH_FREE.several_share * self.budget.left_s() / len(tries)
        for instance in tries:
            if self._is_over() or state.is_within(state.lower_bound_us):
                return
            self._try_several_on(instance, seconds)

    def _try_several_on(self, instance: Instance, seconds: float) -> None:
        state, allowance = self.state, self.budget.allow(seconds)
        for found in modulo_search.search(
            instance,
            state.closed_form_us,
            self._longest(instance) / state.ticks_per_us if state.best is None else state.best.us,
            seconds,
            state.options.seed,
            lambda: self._is_over() or allowance.is_over(),
        ):
            early = with_early_weights(found, instance)
            step = -(-early.size // FLUSH_FREE.most_rotations)
            for first in range(0, early.size, step):
                state.offer(early.unrolled(instance, first).programs(instance), early.rate)
                if state.is_within(early.rate):
                    break
