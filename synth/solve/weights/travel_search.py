"""The search for a schedule whose weights travel: first orders, then simulated annealing.

A state is the order of each rank's ops, or of all ranks alike, with the choices by which visits are
placed in it (`visit_placement`). It is evaluated by the exact lowering, memory and simulation of
its schedule. With all-gathers two ranks stand for all (`equal_ranks`); a better schedule is
evaluated on all ranks before it counts.
"""

import math
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from synth.schedule.memory import exceeds_caps, peak_bytes
from synth.schedule.model import Buffering, Schedule
from synth.schedule.verify import ScheduleError, check_deadlock, lower_checked
from synth.schedule.weight_flow import Sharded
from synth.solve.budget import Allowance
from synth.solve.evaluate.evaluate import evaluate
from synth.solve.options import Part, SolveOptions
from synth.solve.result import Baseline, Result, StoppedBy
from synth.solve.search_state import OnImprovement, SearchState
from synth.solve.tuning import TRAVEL
from synth.solve.weights.compute_order import ComputeOrder, changed
from synth.solve.weights.equal_ranks import on_two_ranks
from synth.solve.weights.first_orders import first_orders, published
from synth.solve.weights.programs import make_schedule
from synth.solve.weights.travel import TravelProblem, WeightMovement
from synth.solve.weights.travel_bounds import levels_that_may_fit, needed_bytes, prove_travel
from synth.solve.weights.visit_placement import OpNeeds, Placing
from synth.units import format_bytes_both

_BUFFERINGS = tuple(Buffering(*pair) for pair in TRAVEL.bufferings)


def solve_travelling(
    travel: TravelProblem,
    options: SolveOptions | None = None,
    on_improvement: OnImprovement | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Find the best schedule within the caps whose weights travel, and bound what can be found.

    Never returns a schedule that exceeds a cap, nor one worse than a published schedule of the same
    movement that fits.

    Args:
        travel: the problem and the movement of its weights.
        options: limits and seed.
        on_improvement: called in this thread for every better verified schedule or bound.
        stop: set it, from any thread, to get the best so far.
    """
    given = options or SolveOptions()
    # No time is kept for robustness, which this search has not.
    whole = replace(given, without=given.without | {Part.ROBUSTNESS})
    state = SearchState(travel.problem, whole, on_improvement, stop)
    return _TravelSearch(travel, state).run()


@dataclass(frozen=True)
class _Candidate:
    """The orders of all ranks, or one for all, and the choices by which visits are placed."""

    orders: tuple[ComputeOrder, ...]
    placing: Placing


@dataclass(frozen=True)
class _Scored:
    """A candidate with its value and its schedule on the ranks that were simulated."""

    candidate: _Candidate
    value_us: int


class _Bench:
    """Evaluates candidates on a problem: the one of the search, or two ranks that stand for it."""

    def __init__(self, travel: TravelProblem, sharded: Sharded) -> None:
        self.travel, self.table = travel, OpNeeds(travel)
        self.headrooms = travel.headrooms(sharded)

    def schedule(self, candidate: _Candidate) -> Schedule:
        """Return the schedule of a candidate."""
        return make_schedule(self.table, candidate.orders, candidate.placing, self.headrooms)

    def score(self, candidate: _Candidate) -> _Scored | None:
        """Evaluate a candidate, with less room for visits if it exceeds a limit; None: unfit."""
        problem = self.travel.problem
        for _ in range(TRAVEL.corrections):
            try:
                lowered = lower_checked(self.schedule(candidate), problem.costs)
                peaks = peak_bytes(lowered)
                if not exceeds_caps(peaks, problem.caps_bytes):
                    value_us = problem.objective.value_us(check_deadlock(lowered))
                    return _Scored(candidate, value_us)
            except ScheduleError:
                return None
            over = max(map(int.__sub__, peaks, problem.caps_bytes or peaks))
            reserve_bytes = candidate.placing.reserve_bytes + over
            placing = replace(candidate.placing, reserve_bytes=reserve_bytes)
            candidate = replace(candidate, placing=placing)
        return None


class _TravelSearch:
    """One search: its state, its benches and the candidates that it begins from."""

    def __init__(self, travel: TravelProblem, state: SearchState) -> None:
        self.travel, self.state = travel, state
        self.rng = random.Random(state.options.seed)
        self.is_ring = travel.movement == WeightMovement.RING
        self.real = {level: _Bench(travel, level) for level in travel.levels}
        self.benches = self.real
        if not self.is_ring:
            self.benches = {
                level: _Bench(on_two_ranks(travel, level), level) for level in travel.levels
            }
        self.levels = levels_that_may_fit(travel)
        self.pool: list[_Scored] = []

    def run(self) -> Result:
        """Offer published schedules, try first orders, anneal until the time is up."""
        self.state.raise_bound(prove_travel(self.travel))
        self._offer_published()
        if not self.levels:
            return self.state.result(StoppedBy.INFEASIBLE, self._why_none())
        allowance = self.state.budget.allow(self.state.budget.left_s())
        self._try_first(allowance)
        while self.pool and not self._is_over(allowance):
            self._anneal(self._begin(), allowance)
        if self.state.best is None:
            return self.state.result(StoppedBy.TIME_LIMIT)
        reason = self.state.reason()
        is_spent = reason == StoppedBy.EXHAUSTED
        return self.state.result(StoppedBy.TIME_LIMIT if is_spent else reason)

    def _why_none(self) -> str:
        needs = needed_bytes(self.travel, Sharded.WEIGHTS)
        return (
            f"no schedule whose weights travel by {self.travel.movement} fits: what a rank keeps, "
            f"the weights of one stage and one micro-batch alone need "
            f"{format_bytes_both(max(needs))} (--mem-limit {max(needs)}B); allow that much, or "
            f"take more ranks or a smaller micro-batch"
        )

    def _is_over(self, allowance: Allowance) -> bool:
        return self.state.should_stop() or allowance.left_s() <= 0

    # Published schedules

    def _offer_published(self) -> None:
        for index, (name, schedule) in enumerate(published(self.travel)):
            alone = evaluate(replace(self.travel.problem, caps_bytes=None), schedule, name)
            if alone is None:
                continue
            fits = not exceeds_caps(alone.peak_bytes, self.travel.problem.caps_bytes)
            line = alone.timeline
            if "ahead" not in name:
                times_us = line.makespan_us, line.period_us, max(line.work_us)
                self.state.baselines.append(
                    Baseline(name, *times_us, alone.peak_bytes, fits, True, line.mean_work_us)
                )
            if fits:
                self.state.offer(alone)
            if index and self.state.budget.is_over():
                return

    # First orders

    def _try_first(self, allowance: Allowance) -> None:
        """Try all orders with the usual choices, then the best of them with all others."""
        part = self.state.budget.allow(TRAVEL.first_share * allowance.left_s())
        names = first_orders(self.travel)
        usual = [(order, placing) for placing in self._first_placings() for order in names]
        self._try_each(usual, names, part)
        best = [scored.candidate.orders[0] for scored in self.pool]
        others = [(order, placing) for placing in self._placings() for order in best or names]
        self._try_each(others, names, part)
        allowance.spend(TRAVEL.first_share * allowance.left_s() - part.left_s())

    def _try_each(
        self,
        pairs: list[tuple[ComputeOrder, Placing]],
        names: dict[ComputeOrder, str],
        allowance: Allowance,
    ) -> None:
        for order, placing in pairs:
            if self._is_over(allowance):
                return
            self._try(_Candidate((order,), placing), names[order], allowance)

    def _first_placings(self) -> Iterator[Placing]:
        for level in self.levels:
            for every in self._scatters():
                yield Placing(scatter_every=every, sharded=level)

    def _placings(self) -> Iterator[Placing]:
        for buffering in _BUFFERINGS:
            for ahead in TRAVEL.first_aheads:
                for first in self._first_placings():
                    yield replace(first, ahead=ahead, buffering=buffering)

    def _scatters(self) -> tuple[int, ...]:
        """The numbers of W's between reduce-scatters to try: each one, and all."""
        return (1,) if self.is_ring else tuple(dict.fromkeys((1, self.travel.rounds)))

    def _try(self, candidate: _Candidate, name: str, allowance: Allowance) -> _Scored | None:
        """Evaluate a candidate; offer it if it is better than the incumbent."""
        bench = self.benches[candidate.placing.sharded]
        num_ops = bench.travel.problem.num_micro_batches * 3 * len(self.travel.stages)
        allowance.spend(num_ops * TRAVEL.evaluation_s_per_op)
        scored = bench.score(candidate)
        if scored is None:
            return None
        self._remember(scored)
        if self.state.improves(scored.value_us):
            schedule = self.real[candidate.placing.sharded].schedule(scored.candidate)
            self.state.offer(evaluate(self.travel.problem, schedule, name))
        return scored

    def _remember(self, scored: _Scored) -> None:
        """Keep the best candidates, one of each order."""
        orders = scored.candidate.orders
        same = next((one for one in self.pool if one.candidate.orders == orders), None)
        if same is not None:
            if same.value_us <= scored.value_us:
                return
            self.pool.remove(same)
        self.pool.append(scored)
        self.pool.sort(key=lambda one: one.value_us)
        del self.pool[TRAVEL.pool :]

    # Annealing

    def _begin(self) -> _Scored:
        """Choose a candidate to begin from, the best most often."""
        place = int(len(self.pool) * self.rng.random() ** 2)
        return self.pool[place]

    def _anneal(self, current: _Scored, allowance: Allowance) -> None:
        """Run from hot to cold, accepting worse candidates by Metropolis' rule."""
        cooling = TRAVEL.cold / TRAVEL.hot
        for step in range(TRAVEL.moves):
            if self._is_over(allowance):
                return
            moved = self._neighbour(current.candidate)
            if moved is None:
                continue
            scored = self._try(moved, "annealing", allowance)
            if scored is None:
                continue
            worse_us = scored.value_us - current.value_us
            heat_us = current.value_us * TRAVEL.hot * cooling ** (step / TRAVEL.moves)
            if worse_us <= 0 or self.rng.random() < math.exp(-worse_us / max(heat_us, 1e-9)):
                current = scored

    def _neighbour(self, candidate: _Candidate) -> _Candidate | None:
        if self.rng.random() < TRAVEL.placing_share:
            return replace(candidate, placing=self._other_placing(candidate.placing))
        orders = candidate.orders
        if self.is_ring and len(orders) == 1 and self.rng.random() < TRAVEL.alone_share:
            orders *= self.travel.num_ranks
        rank = self.rng.randrange(len(orders))
        order = changed(orders[rank], self.rng, TRAVEL.farthest)
        if order is None:
            return None
        moved = (*orders[:rank], order, *orders[rank + 1 :])
        return _Candidate(moved, replace(candidate.placing, reserve_bytes=0))

    def _other_placing(self, placing: Placing) -> Placing:
        """Change one of the choices."""
        rng, num_stages = self.rng, len(self.travel.stages)
        placing = replace(placing, reserve_bytes=0)
        match rng.randrange(3 if self.is_ring else 6):
            case 0:
                return replace(placing, ahead=max(0, placing.ahead + rng.choice((-2, -1, 1, 2))))
            case 1:
                return replace(placing, buffering=rng.choice(_BUFFERINGS))
            case 2:
                return replace(placing, most_open=rng.choice([None, *range(1, num_stages + 1)]))
            case 3:
                return replace(placing, scatter_every=rng.randint(1, self.travel.rounds))
            case 4:
                return replace(placing, gathers_first=not placing.gathers_first)
            case _:
                return replace(placing, sharded=rng.choice(self.levels))
