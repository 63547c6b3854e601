"""The search over data-parallel pipelines with sharded state: what is sharded, and the places.

In each order of one pipeline (`pipeline_orders`) collectives are placed, first as memory allows
(`first_gathers`) and then by local search (`gather_moves`). All pipelines run one order, so with
equal links no collective waits for another pipeline. Every candidate is lowered and simulated with
the collectives of all pipelines.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

from synth.plan.tuning import SHARDED_PIPELINES
from synth.plan.weight_passing.first_gathers import OrderOfOne, first_visit_options
from synth.plan.weight_passing.gather_moves import Program, moved, unnumbered
from synth.plan.weight_passing.least_share import SHARDINGS
from synth.plan.weight_passing.pipeline_orders import PipelineOrders
from synth.plan.weight_passing.solution_pool import PlacedCollectives, SolutionPool
from synth.schedule.model import Buffering, Schedule
from synth.schedule.rank_memory import exceeds_caps
from synth.schedule.verify_weights import check_parameters_known
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.budget import Allowance
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Result
from synth.solver.search_state import SearchState
from synth.solver.watch import UNWATCHED, SolveWatch
from synth.solver.weight_passing.visit_options import VisitOptions
from synth.units import format_bytes_both

Programs = tuple[Program, ...]


class ShardedPipelinesSearch:
    """The search for the best schedule of data-parallel pipelines; it may run in parts.

    It chooses the state that is sharded and the places of collectives, and without an order of one
    pipeline the order, too. Copy d of the stages is on ranks d·R to d·R + R − 1. The bound is that
    of one pipeline with the least share of state (`least_share`), and holds for all orders.

    Attributes:
        state: incumbent and bound, for the problem of all pipelines.
    """

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        watch: SolveWatch = UNWATCHED,
        order: Schedule | None = None,
    ) -> None:
        check_parameters_known(problem.costs)
        self.problem = problem
        # No time is kept for robustness, which this search has not.
        whole = replace(options, without=options.without | {Part.ROBUSTNESS})
        self.state = SearchState(problem, whole, watch)
        self._orders = PipelineOrders(problem, order)
        self.state.raise_bound(self._orders.work_bound)
        self._rng = random.Random(options.seed)
        self._pool = SolutionPool(self._rng)
        self._begun: set[tuple[Programs, Buffering]] = set()
        # By places that were evaluated, the bytes of each rank above the limit, or None.
        self._tried: dict[tuple[Sharded | None, Programs, Buffering], list[int] | None] = {}
        tuning = SHARDED_PIPELINES
        self._evaluation_s = tuning.evaluation_s + tuning.evaluation_s_per_op * problem.num_ops
        self._num_evaluations = 0
        self._is_exhausted = False

    @property
    def is_over(self) -> bool:
        """True if more time would find nothing better."""
        return self._orders.is_infeasible or self._is_exhausted or self.state.finished()

    def run(self, seconds: float | None = None) -> Result:
        """Search for some seconds, by default until the time limit, and return the best so far."""
        if not self._orders.may_fit:
            return self.state.result(StoppedBy.INFEASIBLE, self._why_none())
        budget = self.state.budget
        allowance = budget.allow(budget.left_s() if seconds is None else seconds)
        for _ in self._published():
            self._count(allowance)
            if self._is_late(allowance):
                break
        self._orders.search(self.state, allowance)
        if self._orders.is_infeasible:
            return self.state.result(StoppedBy.INFEASIBLE)
        evaluations = self._evaluations()
        while not self._is_late(allowance):
            if next(evaluations, None) is None:  # there is no order left, and none fitted
                self._is_exhausted = self._orders.are_over
                break
            self._count(allowance)
        reason = self.state.reason()
        is_open = reason == StoppedBy.NOTHING_BETTER and not self._is_exhausted
        return self.state.result(StoppedBy.TIME_LIMIT if is_open else reason)

    def _count(self, allowance: Allowance) -> None:
        self._num_evaluations += 1
        allowance.spend(self._evaluation_s)

    def _is_late(self, allowance: Allowance) -> bool:
        """True if the search should end; first places are evaluated even without time."""
        state, tuning = self.state, SHARDED_PIPELINES
        is_beginning = self._num_evaluations < tuning.least_evaluations
        if (
            state.best is None
            and is_beginning
            and self._num_evaluations * self._evaluation_s < tuning.most_beyond_s
        ):
            return state.budget.stop.is_set()
        return state.finished() or allowance.left_s() <= 0

    def _why_none(self) -> str:
        problem = self.problem
        need = max(needed_bytes(self._orders.problem))
        return (
            f"no schedule of {problem.num_replicas} data-parallel pipelines fits, whichever state "
            f"they share: on the tried placement that needs least, a rank's share of all state, "
            f"the running stage and one micro-batch alone need {format_bytes_both(need)} "
            f"(§mem_limit {need}B); raise the limit, or take more ranks or pipelines"
        )

    def _published(self) -> Iterator[bool]:
        """Offer published schedules with each kind of sharding; the best of each is a baseline."""
        if self.state.baselines:
            return
        for name, schedule in self._orders.published():
            order = OrderOfOne(schedule, self.problem)
            found = [
                self._evaluated(order.published_places(sharded), name) for sharded in SHARDINGS
            ]
            known = [one for one in found if one is not None]
            for one in known:
                self._offer(one)
                yield True
            if known:
                self._add_baseline(name, known)

    def _add_baseline(self, name: str, known: list[EvaluatedSchedule]) -> None:
        """Add the fastest one that fits, or else the one with the smallest peak."""
        fitting = [one for one in known if self._fits(one)]
        if fitting:
            best = min(fitting, key=lambda one: one.value_us)
        else:
            best = min(known, key=lambda one: max(one.peak_bytes))
        flow = best.schedule.weights
        name += f", {'nothing' if flow is None else flow.sharded} sharded"
        fits = self._fits(best)
        self.state.baselines.append(Baseline.of(name, best.timeline, best.peak_bytes, fits=fits))

    def _evaluations(self) -> Iterator[bool]:
        """Yield True after each evaluation: first places in all orders, then local search."""
        for name, schedule in self._orders.all():
            key = schedule.programs, schedule.buffering
            if key in self._begun:
                continue
            order = OrderOfOne(schedule, self.problem)
            for sharded in SHARDINGS:
                yield from self._take_once(order, sharded, order.published_places(sharded), name)
            for sharded in Sharded:
                for visit_options in first_visit_options(order, sharded):
                    yield from self._take_corrected(order, visit_options, name)
            self._begun.add(key)  # only now: the time may end before, and the next part goes on
        while self._pool:
            yield from self._climb(self._pool.draw())

    def _take_corrected(
        self, order: OrderOfOne, visit_options: VisitOptions, name: str
    ) -> Iterator[bool]:
        """Evaluate first places; leave more memory free where they exceed the limit."""
        reserves, before = [0] * order.schedule.num_ranks, None
        for _ in range(SHARDED_PIPELINES.corrections):
            placed = order.with_places(visit_options, reserves)
            if placed.programs == before:
                return
            before = placed.programs
            yield from self._take_once(order, visit_options.sharded, placed, name)
            over = self._tried[visit_options.sharded, placed.programs, placed.buffering]
            if over is None:
                return
            reserves = [max(0, more) + had for more, had in zip(over, reserves, strict=True)]

    def _climb(self, current: PlacedCollectives) -> Iterator[bool]:
        """Move collectives one at a time, and keep what is no slower."""
        for _ in range(SHARDED_PIPELINES.moves_per_run):
            programs = self._neighbour(current)
            if programs is None:
                yield False
                return
            schedule = current.order.with_programs(programs, current.sharded)
            found = self._evaluated(schedule, "places of collectives")
            yield True
            if found is None or not self._fits(found) or found.value_us > current.value_us:
                continue
            self._offer(found)
            current = replace(current, programs=programs, value_us=found.value_us)
            self._pool.remember(current)

    def _neighbour(self, current: PlacedCollectives) -> Programs | None:
        for _ in range(SHARDED_PIPELINES.draws_per_move):
            rank = self._rng.randrange(len(current.programs))
            program = moved(current.programs[rank], current.sharded, self._rng)
            if program is not None:
                before, after = current.programs[:rank], current.programs[rank + 1 :]
                return (*before, program, *after)
        return None

    def _take_once(
        self, order: OrderOfOne, sharded: Sharded | None, schedule: Schedule, name: str
    ) -> Iterator[bool]:
        """Evaluate places that have not been evaluated before."""
        key = sharded, schedule.programs, schedule.buffering
        if key not in self._tried:
            self._tried[key] = self._take_or_excess(order, sharded, schedule, name)
            yield True

    def _take_or_excess(
        self, order: OrderOfOne, sharded: Sharded | None, schedule: Schedule, name: str
    ) -> list[int] | None:
        """Evaluate places; offer and remember them if they fit.

        Returns:
            By rank of a pipeline the bytes above its limit; None if the places fit or cannot run.
        """
        found = self._evaluated(schedule, name)
        if found is None:
            return None
        num_ranks = order.schedule.num_ranks
        if not self._fits(found):
            caps = self.problem.caps_bytes or found.peak_bytes
            over = [peak - cap for peak, cap in zip(found.peak_bytes, caps, strict=True)]
            return [max(over[rank::num_ranks]) for rank in range(num_ranks)]
        self._offer(found)
        if sharded is not None:
            programs = tuple(unnumbered(each) for each in schedule.programs[:num_ranks])
            self._pool.remember(PlacedCollectives(order, sharded, programs, found.value_us))
        return None

    def _evaluated(self, schedule: Schedule, name: str) -> EvaluatedSchedule | None:
        return evaluate(replace(self.problem, caps_bytes=None), schedule, name)

    def _fits(self, found: EvaluatedSchedule) -> bool:
        return not exceeds_caps(found.peak_bytes, self.problem.caps_bytes)

    def _offer(self, found: EvaluatedSchedule) -> None:
        if self._fits(found):
            self.state.offer(found)
