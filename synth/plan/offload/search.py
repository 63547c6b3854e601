"""The search for schedules that offload activations to the host's memory.

1. The published schedules that offload, on all placements and on their best cuts. Each order that
   is published on the best of these gets its offloads (`with_offloads`). The best few plans are
   annealed for a short time; O and L move, too.
2. The search without offloads, under the memory limits; short where bounds show that it cannot win.
3. The same without limits. Its bound holds with offloads, too: a schedule without its moves is no
   slower, and its order is one without limits.
4. Orders in which a part of what F saves counts as away (`thinned`), on the best few placements and
   partitions. Each gets its offloads, as does every published schedule there.
5. Annealing of the best of these, also of the plan without offloads. Where that leads, its search
   goes on for half of the time; where it is far ahead, step 4 is left out.

So the answer is no worse than any published schedule that offloads and was evaluated.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import le

from synth.families import generate_for
from synth.plan.choose.candidates import Candidate, Ranking, SearchWatch
from synth.plan.offload.best_answer import BestAnswer
from synth.plan.offload.bound_of_answer import problem_key
from synth.plan.offload.offloaded import with_offloads, without_moves
from synth.plan.offload.plan_annealing import PlanAnnealing
from synth.plan.offload.published_offloads import PublishedOffloads
from synth.plan.offload.thinned import away_shares, thinned
from synth.plan.recompute.choice import bound_us
from synth.plan.search_space import OneCandidate, Placements
from synth.plan.tuning import OFFLOAD
from synth.schedule.model import Schedule
from synth.search.outcome import rank_key
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate, split_backward
from synth.solver.infeasibility import SERIAL, serial_schedule
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result, judged_result
from synth.solver.solver import solve
from synth.solver.watch import OnImprovement, SolveWatch

CHOSEN = "offloads chosen"


def search_with_offloads(
    space: OneCandidate | Placements,
    options: SolveOptions,
    watch: SearchWatch,
    finer: Sequence[Candidate] = (),
) -> Ranking:
    """Find the best schedule, with or without offloads.

    Args:
        space: of problems with memory limits and a link to the host.
        options: the time limit is for all steps together.
        watch: the listeners and the stop.
        finer: placements of many stages, on which only schedules with offloads are searched.
    """
    return _OffloadSearch(space, options, watch, finer).run()


class _OffloadSearch:
    """The steps, with the best answer so far."""

    def __init__(
        self,
        space: OneCandidate | Placements,
        options: SolveOptions,
        watch: SearchWatch,
        finer: Sequence[Candidate],
    ) -> None:
        self.space, self.options, self.watch = space, options, watch
        self.clock = options.clock(watch.stop)
        self.candidates = (*space.all_candidates, *finer)
        self.answer = BestAnswer(space, finer, options.gap, self.clock, watch.on_improvement)
        self.plans = PlanAnnealing(options, self.clock)
        # The limits of value with which offloads of orders were chosen.
        self._tried: dict[tuple[object, ...], tuple[float, float]] = {}

    def run(self) -> Ranking:
        clock, answer = self.clock, self.answer
        published = PublishedOffloads(self.space, self.candidates, clock, self._take_plan)
        published.judge(clock.moment_s(OFFLOAD.judging_share))
        shares = OFFLOAD.cuts_share, OFFLOAD.first_cuts_share
        published.search_cuts(*map(clock.moment_s, shares))
        early_s = clock.moment_s(OFFLOAD.early_share)
        for problem in self._problems([]):
            self._choose_for_published(problem, early_s, OFFLOAD.near_order_factor)
        self.plans.run_rung(OFFLOAD.early_rung_share, self._is_over, self._take_plan)
        base = self._search(self.space, self._plain_share(), answer.take_incumbent)
        answer.bound.note(base)
        self._take_plain(base.result)
        if not self._is_over() and not answer.is_infeasible(base.result):
            free = self._search(_unlimited(self.space), OFFLOAD.unlimited_share)
            answer.bound.note_unlimited(free)
            if (self._lead_of_plain(base.result) or 0) <= OFFLOAD.near_factor:
                self._search_orders(base, free)
            self._improve(base.result)
        return answer.ranking(base, is_interrupted=self.watch.stop.is_set())

    # Steps

    def _search(
        self,
        space: OneCandidate | Placements,
        share: float,
        listener: OnImprovement | None = None,
    ) -> Ranking:
        """Search a space for a share of the remaining time."""
        part_s = share * self.clock.left_s()
        self.clock.grant(part_s)
        options = replace(self.options, time_limit_s=part_s)
        return space.search(options, SearchWatch(listener, self.watch.stop))

    def _plain_share(self) -> float:
        """Return the share of the search without offloads, the larger the less others promise."""
        value_us, least_us = self.answer.value_us, self.answer.bound_us
        if value_us is None or least_us is None or value_us > OFFLOAD.far_factor * least_us:
            return OFFLOAD.without_good_plan_share
        can_win = any(
            one.choice != () or bound_us(one.problem, ()) < value_us
            for one in self.space.all_candidates
        )
        return OFFLOAD.without_share if can_win else OFFLOAD.hopeless_share

    def _problems(self, rankings: Sequence[Ranking]) -> Iterator[Problem]:
        """Yield the placements and partitions that look best, under the limits.

        Those of the best plans and of searches, or else those of the candidates.
        """
        caps = self.space.problem.caps_bytes
        found: list[tuple[Problem, int | None]] = [
            (plan.problem, plan.found.value_us) for plan in self.plans.best()
        ]
        results = [ranking.result for ranking in rankings]
        results += [one.found for each in rankings for one in each.trials if one.found]
        found += [(one.problem, one.value_us) for one in results]
        found.sort(key=lambda pair: rank_key(pair[1]))
        seen: set[tuple[object, ...]] = set()
        for problem, _ in found or [(one.problem, None) for one in self.candidates]:
            key = problem_key(problem)
            if len(seen) == OFFLOAD.few_problems or self._is_over():
                return
            if key not in seen:
                seen.add(key)
                yield replace(problem, caps_bytes=caps)

    def _search_orders(self, base: Ranking, free: Ranking) -> None:
        """Search for orders on some problems, and choose offloads of each."""
        until_s = self.clock.moment_s(OFFLOAD.orders_share)
        published_s = self.clock.moment_s(OFFLOAD.orders_share / 2)
        problems = list(self._problems([base, free]))
        for problem in problems:
            if self._is_over():
                return
            self._choose(problem, serial_schedule(problem), SERIAL, published_s)
            self._choose_for_published(problem, published_s)
        if free.result.schedule is not None and not self._is_over():
            problem = replace(free.result.problem, caps_bytes=self.space.problem.caps_bytes)
            self._choose(problem, free.result.schedule, free.result.found_by or "", until_s)
        problems = [problem for problem in problems if any(away_shares(problem))]
        tasks = [(factor, problem) for factor in OFFLOAD.factors for problem in problems]
        last: dict[int, Result] = {}
        for (factor, problem), seconds in self.clock.shared(tasks, until_s):
            if self._is_over() or seconds <= 0:
                return
            self.clock.grant(seconds)
            options = replace(
                self.options,
                time_limit_s=seconds,
                hint=None,
                without=self.options.without | {Part.BOUNDS},
                gap=0.0,
            )
            if id(problem) in last:
                options = options.going_on_from(last[id(problem)])
            found = solve(thinned(problem, factor), options, SolveWatch(stop=self.watch.stop))
            if found.schedule is not None:
                last[id(problem)] = found
                self._choose(problem, found.schedule, found.found_by or "", until_s)

    def _choose_for_published(
        self, problem: Problem, until_s: float, most_factor: float = math.inf
    ) -> None:
        """Choose offloads of all published orders until a moment of the search.

        Those that themselves offload are judged as they are, too.
        """
        count, caps = problem.num_micro_batches, problem.caps_bytes
        made = generate_for(
            problem.placement, count, problem.costs, caps, objective=problem.objective
        )
        for name, schedule in made:
            if self._is_over() or self.clock.left_s(until_s) <= 0:
                return
            if schedule.offloads and problem.admits(schedule):
                found = evaluate(problem, schedule, name)
                if found is not None:
                    self._take_plan(problem, found)
            if without_moves(schedule).keeps_saved:
                self._choose(problem, schedule, name, until_s, most_factor)

    def _choose(
        self,
        problem: Problem,
        schedule: Schedule,
        name: str,
        until_s: float,
        most_factor: float = math.inf,
    ) -> None:
        """Choose the offloads of an order, if that was not done before.

        Plans that would be far behind the best one are given up, and all at a moment of the search.

        Args:
            most_factor: gives up plans that take more than this multiple of the order's value
                without limits.
        """
        order = without_moves(schedule)
        key = (*problem_key(problem), order.programs, order.buffering)
        best_us = self.answer.value_us
        limits = math.inf if best_us is None else OFFLOAD.near_factor * best_us, most_factor
        tried = self._tried.get(key)
        if tried is not None and all(map(le, limits, tried)):
            return
        self._tried[key] = limits
        self.clock.grant(OFFLOAD.choice_counts_as * problem.num_ops / OFFLOAD.ops_per_s)
        is_late = partial(self._is_late, until_s)
        found = with_offloads(problem, order, f"{name}, {CHOSEN}", *limits, should_stop=is_late)
        if found is None:
            return
        self._take_plan(problem, found)
        apart = split_backward(problem, found)
        if apart is not None:
            self._take_plan(problem, apart)

    def _is_late(self, until_s: float) -> bool:
        return self.clock.is_over() or self.clock.left_s(until_s) <= 0

    def _improve(self, base: Result) -> None:
        """Spend the rest of the time on the best plans, a part without offloads if that leads."""
        lead = self._lead_of_plain(base)
        if (lead is None or lead > 1) and base.schedule is not None and not self._is_over():
            self._go_on(base, OFFLOAD.going_on_share)
        self.plans.run(self._is_over, self._take_plan)
        if base.schedule is not None and not self._is_over():  # annealing is not compiled yet
            self._go_on(base, 1.0)

    def _lead_of_plain(self, base: Result) -> float | None:
        """Return the best value with offloads by that without; None if either is unknown."""
        best = next((one for one in self.plans.best() if one.found.schedule.offloads), None)
        if best is None or base.value_us is None:
            return None
        return best.found.value_us / base.value_us

    def _go_on(self, base: Result, share: float) -> None:
        """Continue the search without offloads from its best schedule."""
        name, _, choice, *_ = self.space.all_candidates[0]
        part_s = share * self.clock.left_s()
        options = replace(self.options, time_limit_s=part_s).going_on_from(base)
        self.clock.grant(options.time_limit_s)
        one = OneCandidate(Candidate(name, base.problem, choice))
        found = one.search(options, SearchWatch(self.answer.take_incumbent, self.watch.stop))
        self._take_plain(found.result)

    def _is_over(self) -> bool:
        """Return True if the time is over, or a bound proves the best answer good enough."""
        return self.clock.is_over() or self.answer.is_good_enough

    def _take_plain(self, result: Result) -> None:
        """Take a result of a search without offloads, from which annealing may begin, too."""
        self.answer.take(result)
        if result.schedule is not None:
            found = evaluate(result.problem, result.schedule, result.found_by or "")
            if found is not None:
                self.plans.add(result.problem, found)

    def _take_plan(self, problem: Problem, found: EvaluatedSchedule) -> None:
        self.plans.add(problem, found)
        self.answer.take(judged_result(problem, found, 0))


def _unlimited(space: OneCandidate | Placements) -> OneCandidate | Placements:
    """Return a space without memory limits."""
    if isinstance(space, OneCandidate):
        return replace(space, candidate=_uncapped(space.candidate))
    return replace(space, candidates=tuple(map(_uncapped, space.candidates)))


def _uncapped(candidate: Candidate) -> Candidate:
    return candidate.on(replace(candidate.problem, caps_bytes=None))
