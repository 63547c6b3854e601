"""The search for a schedule with weight passing: first orders, then simulated annealing.

A state is the order of each rank's ops, or one order for all ranks, with the choices by which
visits are placed in it (`unshard_placement`). It is evaluated by the exact lowering, memory and
simulation of its schedule. With all-gathers two ranks represent all of them (`equal_ranks`); a
better schedule is evaluated on all ranks before it counts.
"""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from synth.schedule.model import Buffering
from synth.schedule.rank_memory import exceeds_caps
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.budget import Allowance
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.options import Part, SolveOptions
from synth.solver.result import Baseline, Result
from synth.solver.search_state import SearchState
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.watch import UNWATCHED, SolveWatch
from synth.solver.weight_passing.bounds import (
    least_cap_bytes,
    levels_that_may_fit,
    prove_weight_passing,
)
from synth.solver.weight_passing.candidates import (
    CandidateEvaluator,
    OrderCandidate,
    ScoredCandidate,
)
from synth.solver.weight_passing.compute_order import ComputeOrder, changed
from synth.solver.weight_passing.equal_ranks import on_two_ranks
from synth.solver.weight_passing.first_orders import first_orders, published
from synth.solver.weight_passing.least_memory import least_memory
from synth.solver.weight_passing.problem import (
    WeightMovement,
    WeightPassingProblem,
    passes_from_rank_to_rank,
)
from synth.solver.weight_passing.ring_moves import moved
from synth.solver.weight_passing.small_problems import is_small, prove_exactly
from synth.solver.weight_passing.visit_options import VisitOptions
from synth.units import format_bytes_both

_BUFFERINGS = tuple(Buffering(*pair) for pair in WEIGHT_PASSING.bufferings)


class WeightPassingSearch:
    """The search for the best schedule within the caps, and a lower bound; it may run in parts.

    Never returns a schedule that exceeds a cap, nor one worse than a published schedule of the same
    movement that fits.
    """

    def __init__(
        self, passing: WeightPassingProblem, options: SolveOptions, watch: SolveWatch = UNWATCHED
    ) -> None:
        # No time is kept for robustness, which this search has not.
        whole = replace(options, without=options.without | {Part.ROBUSTNESS})
        self.passing = passing
        self.state = SearchState(passing.problem, whole, watch)
        self._rng = random.Random(options.seed)
        self._is_ring = passing.movement == WeightMovement.RING
        self._levels = levels_that_may_fit(passing)
        self._on_all_ranks = {level: CandidateEvaluator(passing, level) for level in self._levels}
        self._evaluators = self._on_all_ranks
        if not self._is_ring:
            self._evaluators = {
                level: CandidateEvaluator(on_two_ranks(passing, level), level)
                for level in self._levels
            }
        self._pool: list[ScoredCandidate] = []
        self._evaluations = self._all_evaluations()
        self._num_evaluations = 0
        self._is_exhausted = self._is_impossible = False
        self._allowance = self.state.budget.allow(0.0)
        self._exact_s = 0.0
        self.state.raise_bound(prove_weight_passing(passing))

    def run(self, seconds: float | None = None) -> Result:
        """Search for some seconds, by default until the time limit, and return the best so far."""
        budget = self.state.budget
        allowance = budget.allow(budget.left_s() if seconds is None else seconds)
        self._allowance = allowance
        effort_s = WEIGHT_PASSING.evaluation_s_per_op * self.passing.problem.num_ops
        while not self._is_late(allowance):
            allowance.spend(effort_s)
            self._num_evaluations += 1
            if next(self._evaluations, None) is None:
                self._is_exhausted = True
                break
        is_open = bool(self._levels) and not self._is_impossible
        if self.state.best is None and is_open and not self.state.budget.stop.is_set():
            self._offer_least_memory()
        return self._result()

    def _offer_least_memory(self) -> None:
        """Offer the schedule of the least known memory, if it fits."""
        found = least_memory(self.passing)
        if found is not None and not exceeds_caps(
            found.peak_bytes, self.passing.problem.caps_bytes
        ):
            self.state.offer(found)

    def _is_late(self, allowance: Allowance) -> bool:
        """True if the search should end; published schedules are evaluated even without time."""
        state = self.state
        if self._is_impossible:
            return True
        if state.best is None and self._num_evaluations < WEIGHT_PASSING.least_evaluations:
            return state.budget.stop.is_set()
        return state.finished() or allowance.left_s() <= 0

    @property
    def is_over(self) -> bool:
        """True if more time would find nothing better."""
        return self._is_exhausted or self._is_impossible or self.state.finished()

    def _result(self) -> Result:
        if not self._levels:
            return self.state.result(StoppedBy.INFEASIBLE, self._why_none())
        if self._is_impossible:
            message = (
                f"no schedule with weight passing by {self.passing.movement} fits, as a search "
                f"over all of them shows; allow more memory, or take a smaller micro-batch"
            )
            return self.state.result(StoppedBy.INFEASIBLE, message)
        reason = self.state.reason()
        is_open = reason == StoppedBy.NOTHING_BETTER and not self._is_exhausted
        return self.state.result(StoppedBy.TIME_LIMIT if is_open else reason)

    def _all_evaluations(self) -> Iterator[bool]:
        """Yield True after each evaluation, or False if a move was impossible.

        Published schedules come first, then all orders with the usual choices and the exact model.
        Then annealing alternates with other choices for the best orders.
        """
        yield from self._published()
        if not self._levels:
            return
        names = first_orders(self.passing)
        yield from self._tries(((o, p) for p in self._first_visit_options() for o in names), names)
        yield from self._exactly()
        best = [scored.candidate.orders[0] for scored in self._pool] or [*names]
        others = (
            (order, visit_options) for visit_options in self._visit_options() for order in best
        )
        is_left = True
        while is_left or self._pool:
            batch = list(islice(others, WEIGHT_PASSING.batch))
            is_left = bool(batch)
            yield from self._tries(batch, names)
            if self._pool:
                yield from self._annealing(self._begin())
            yield from self._moving_visits()
            yield from self._exactly()

    def _why_none(self) -> str:
        need = least_cap_bytes(self.passing)
        return (
            f"no schedule with weight passing by {self.passing.movement} fits: what a rank keeps, "
            f"the weights of one stage and one micro-batch alone need "
            f"{format_bytes_both(need)} (§mem_limit {need}B); allow that much, or "
            f"take more ranks or a smaller micro-batch"
        )

    def _published(self) -> Iterator[bool]:
        """Offer published schedules; those with the default prefetch distance become baselines."""
        problem = self.passing.problem
        for name, schedule in published(self.passing):
            alone = evaluate(replace(problem, caps_bytes=None), schedule, name)
            if alone is not None:
                fits = not exceeds_caps(alone.peak_bytes, problem.caps_bytes)
                if "ahead" not in name:
                    self.state.baselines.append(
                        Baseline.of(name, alone.timeline, alone.peak_bytes, fits=fits)
                    )
                if fits:
                    self.state.offer(alone)
            yield True

    def _tries(
        self, pairs: Iterable[tuple[ComputeOrder, VisitOptions]], names: dict[ComputeOrder, str]
    ) -> Iterator[bool]:
        for order, visit_options in pairs:
            self._try(OrderCandidate((order,), visit_options), names[order])
            yield True

    def _exactly(self) -> Iterator[bool]:
        """Solve the exact model, if it is small, and again once there is more time for it."""
        state, limit_s = self.state, WEIGHT_PASSING.exact_share * self._allowance.left_s()
        is_wanted = Part.EXACT not in state.options.without and is_small(self.passing)
        if (
            not is_wanted
            or state.finished()
            or limit_s < WEIGHT_PASSING.exact_growth * self._exact_s
        ):
            return
        self._exact_s = limit_s
        best_us = None if state.best is None else state.best.timeline.makespan_us
        proof = prove_exactly(
            self.passing, best_us, state.options, limit_s, state.budget.stop.is_set
        )
        if state.budget.is_deterministic:
            self._allowance.spend(proof.spent_s)
        if proof.schedule is not None:
            state.offer(evaluate(self.passing.problem, proof.schedule, "cpsat"))
        if proof.is_complete and state.best is None:
            self._is_impossible = True
            return
        state.raise_bound(proof.proven(self.passing))
        yield True

    def _first_visit_options(self) -> Iterator[VisitOptions]:
        for level in self._levels:
            for every in self._scatters(level):
                yield VisitOptions(scatter_every=every, sharded=level)

    def _visit_options(self) -> Iterator[VisitOptions]:
        for buffering in _BUFFERINGS:
            for ahead in WEIGHT_PASSING.first_aheads:
                for first in self._first_visit_options():
                    yield replace(first, ahead=ahead, buffering=buffering)

    def _scatters(self, level: Sharded) -> tuple[int, ...]:
        """The numbers of W's between reduce-scatters to try: each one, and all."""
        if self._is_ring:
            return (1,)
        whole = (self.passing.rounds,)
        return whole if level == Sharded.OPTIMIZER else tuple(dict.fromkeys((1, *whole)))

    def _try(self, candidate: OrderCandidate, name: str) -> ScoredCandidate | None:
        """Evaluate a candidate; offer it if it is better than the incumbent."""
        scored = self._evaluators[candidate.visit_options.sharded].score(candidate)
        if scored is None:
            return None
        self._remember(scored)
        if self.state.improves(scored.value_us):
            schedule = self._on_all_ranks[candidate.visit_options.sharded].schedule(
                scored.candidate
            )
            self.state.offer(evaluate(self.passing.problem, schedule, name))
        return scored

    def _remember(self, scored: ScoredCandidate) -> None:
        """Keep the best candidates, one of each order."""
        orders = scored.candidate.orders
        same = next((one for one in self._pool if one.candidate.orders == orders), None)
        if same is not None:
            if same.value_us <= scored.value_us:
                return
            self._pool.remove(same)
        self._pool.append(scored)
        self._pool.sort(key=lambda one: one.value_us)
        del self._pool[WEIGHT_PASSING.pool_size :]

    # Annealing

    def _begin(self) -> ScoredCandidate:
        """Choose a candidate to begin from, the best most often."""
        place = int(len(self._pool) * self._rng.random() ** 2)
        return self._pool[place]

    def _annealing(self, current: ScoredCandidate) -> Iterator[bool]:
        """Run from hot to cold, accepting worse candidates by Metropolis' rule."""
        for step in range(WEIGHT_PASSING.moves_per_run):
            neighbour = self._neighbour(current.candidate)
            scored = None if neighbour is None else self._try(neighbour, "annealing")
            yield neighbour is not None
            if scored is None:
                continue
            if self._accepts(step, current.value_us, scored.value_us):
                current = scored

    def _accepts(self, step: int, current_us: int, value_us: int) -> bool:
        """Decide by Metropolis' rule, at the temperature of a step of a run."""
        cooling = WEIGHT_PASSING.coldest_share / WEIGHT_PASSING.hottest_share
        share = WEIGHT_PASSING.hottest_share * cooling ** (step / WEIGHT_PASSING.moves_per_run)
        worse_us, temperature_us = value_us - current_us, max(share * current_us, 1e-9)
        return worse_us <= 0 or self._rng.random() < math.exp(-worse_us / temperature_us)

    def _moving_visits(self) -> Iterator[bool]:
        """Anneal the programs of the best schedule of a small ring, rank by rank."""
        problem, best = self.passing.problem, self.state.best
        num_forwards = problem.num_micro_batches * len(self.passing.stages)
        if not self._is_ring or best is None or num_forwards > WEIGHT_PASSING.most_moved_forwards:
            return
        current = best
        for step in range(WEIGHT_PASSING.moves_per_run):
            judged = evaluate(problem, moved(current.schedule, self._rng), "moved visits")
            is_valid = judged is not None and passes_from_rank_to_rank(judged.timeline.lowered)
            if judged is not None and is_valid:
                self.state.offer(judged)
                if self._accepts(step, current.value_us, judged.value_us):
                    current = judged
            yield is_valid

    def _neighbour(self, candidate: OrderCandidate) -> OrderCandidate | None:
        if self._rng.random() < WEIGHT_PASSING.placing_share:
            return replace(
                candidate, visit_options=self._other_visit_options(candidate.visit_options)
            )
        orders = candidate.orders
        if self._is_ring and len(orders) == 1 and self._rng.random() < WEIGHT_PASSING.alone_share:
            orders *= self.passing.num_ranks
        rank = self._rng.randrange(len(orders))
        order = changed(orders[rank], self._rng, WEIGHT_PASSING.farthest)
        if order is None:
            return None
        others = (*orders[:rank], order, *orders[rank + 1 :])
        return OrderCandidate(others, replace(candidate.visit_options, reserve_bytes=0))

    def _other_visit_options(self, visit_options: VisitOptions) -> VisitOptions:
        """Change one of the choices."""
        rng, num_stages = self._rng, len(self.passing.stages)
        visit_options = replace(visit_options, reserve_bytes=0)
        match rng.randrange(3 if self._is_ring else 6):
            case 0:
                return replace(visit_options, ahead=rng.choice(WEIGHT_PASSING.aheads))
            case 1:
                return replace(visit_options, buffering=rng.choice(_BUFFERINGS))
            case 2:
                return replace(
                    visit_options, most_open=rng.choice([None, *range(1, num_stages + 1)])
                )
            case 3:
                return replace(visit_options, scatter_every=rng.randint(1, self.passing.rounds))
            case 4:
                return replace(visit_options, gathers_first=not visit_options.gathers_first)
            case _:
                return replace(visit_options, sharded=rng.choice(self._levels))
