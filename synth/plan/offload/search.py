"""The search for schedules that offload activations to the host's memory.

1. The search without offloads, under the memory limits.
2. The same without limits. Its bound holds with offloads, too: a schedule without its moves is no
   slower, and its order is one without limits.
3. Orders in which a part of what F saves counts as away (`thinned`), on the best few placements and
   partitions. Each gets its offloads (`with_offloads`), as does every published schedule there.
4. Local search on the best of these, or the first search again if that is better.

So the answer is no worse than any published schedule that offloads and was evaluated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.families import generate_for
from synth.plan.choose.candidates import Candidate, Ranking, SearchWatch, Trial
from synth.plan.offload.bound_of_answer import AnswerBound, has_guests, problem_key
from synth.plan.offload.move_search import MoveSearch
from synth.plan.offload.offloaded import with_offloads, without_moves
from synth.plan.offload.thinned import away_shares, thinned
from synth.plan.search_space import OneCandidate, Placements
from synth.plan.tuning import OFFLOAD
from synth.schedule.model import Schedule
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy, rank_key, reason_of_end, relative_gap
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate, split_backward
from synth.solver.infeasibility import SERIAL, serial_schedule
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result, judged_result
from synth.solver.solver import solve
from synth.solver.watch import OnImprovement, SolveWatch

CHOSEN = "offloads chosen"


def search_with_offloads(
    space: OneCandidate | Placements, options: SolveOptions, watch: SearchWatch
) -> Ranking:
    """Find the best schedule, with or without offloads.

    Args:
        space: of problems with memory limits and a link to the host.
        options: the time limit is for all steps together.
        watch: the listeners and the stop.
    """
    return _OffloadSearch(space, options, watch).run()


class _Plan(NamedTuple):
    """A schedule with offloads, and the problem that it solves."""

    problem: Problem
    found: EvaluatedSchedule


class _OffloadSearch:
    """The steps, with the best answer so far."""

    def __init__(
        self, space: OneCandidate | Placements, options: SolveOptions, watch: SearchWatch
    ) -> None:
        self.space, self.options, self.watch = space, options, watch
        self.clock = options.clock(watch.stop)
        self.told = BestSoFar(watch.on_improvement)
        self.bound = AnswerBound(space)
        self.best: Result | None = None
        self.plans: list[_Plan] = []  # with offloads, by problem and order

    def run(self) -> Ranking:
        base = self._search(self.space, OFFLOAD.without_share, self._take_incumbent)
        self.bound.note(base)
        self._take(base.result)
        if not self._is_over() and not self._is_infeasible(base.result):
            free = self._search(_unlimited(self.space), OFFLOAD.unlimited_share)
            self.bound.note_unlimited(free)
            self._search_orders(list(self._problems(base, free)), free)
            self._improve(base.result)
        return self._answer(base)

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

    def _problems(self, base: Ranking, free: Ranking) -> Iterator[Problem]:
        """Yield the placements and partitions that look best, under the limits."""
        caps = self.space.problem.caps_bytes
        seen: set[tuple[object, ...]] = set()
        found = [base.result, free.result]
        found += [one.found for each in (base, free) for one in each.trials if one.found]
        ranked = sorted(found[2:], key=lambda one: rank_key(one.value_us))
        for one in (*found[:2], *ranked):
            problem = replace(one.problem, caps_bytes=caps)
            if problem_key(problem) not in seen and len(seen) < OFFLOAD.few_problems:
                seen.add(problem_key(problem))
                yield problem

    def _search_orders(self, problems: Sequence[Problem], free: Ranking) -> None:
        """Search for orders on some problems, and choose offloads of each."""
        until_s = self.clock.moment_s(OFFLOAD.orders_share)
        published_s = self.clock.moment_s(OFFLOAD.orders_share / 2)
        for problem in problems:
            self._choose(problem, serial_schedule(problem), SERIAL)
            self._choose_for_published(problem, published_s)
        if free.result.schedule is not None:
            problem = replace(free.result.problem, caps_bytes=self.space.problem.caps_bytes)
            self._choose(problem, free.result.schedule, free.result.found_by or "")
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
                self._choose(problem, found.schedule, found.found_by or "")

    def _choose_for_published(self, problem: Problem, until_s: float) -> None:
        """Judge published schedules that offload as they are, and choose offloads of all orders.

        The first is done in any case, the other until a moment of the search.
        """
        count, caps = problem.num_micro_batches, problem.caps_bytes
        made = generate_for(
            problem.placement, count, problem.costs, caps, objective=problem.objective
        )
        for name, schedule in made:
            if self.watch.stop.is_set():
                return
            if schedule.offloads and problem.admits(schedule):
                self._take_plan(problem, evaluate(problem, schedule, name))
            if without_moves(schedule).keeps_saved and self.clock.left_s(until_s) > 0:
                self._choose(problem, schedule, name)

    def _choose(self, problem: Problem, schedule: Schedule, name: str) -> None:
        """Choose the offloads of an order."""
        if self.options.deterministic:
            ops = OFFLOAD.choice_counts_as * problem.num_ops
            self.clock.grant(ops / OFFLOAD.ops_per_s)
        order = without_moves(schedule)
        found = with_offloads(problem, order, f"{name}, {CHOSEN}", should_stop=self.clock.is_over)
        self._take_plan(problem, found)
        if found is not None:
            self._take_plan(problem, split_backward(problem, found))

    def _improve(self, base: Result) -> None:
        """Spend the rest of the time on the best plans."""
        self.plans.sort(key=lambda plan: plan.found.value_us)
        best = self.plans[0] if self.plans else None
        is_behind = best is None or rank_key(base.value_us) < rank_key(best.found.value_us)
        is_plain = base.schedule is not None and not base.schedule.offloads
        if is_behind and is_plain and not self._is_over():
            self._go_on(base)  # if it ends early, the plans have the rest
        few = [one for one in self.plans if not has_guests(one.found.schedule)]
        for number, (plan, seconds) in enumerate(self.clock.shared(few[: OFFLOAD.few_plans])):
            if self._is_over():
                return
            search = MoveSearch(plan.problem, plan.found, self.options.seed + number)
            search.run(self._spent(plan.problem, seconds, search))
            self.clock.grant(seconds)
            named = replace(search.best, found_by=plan.found.found_by)
            self._take_plan(plan.problem, named)

    def _spent(self, problem: Problem, seconds: float, search: MoveSearch) -> Callable[[], float]:
        """Return a function of the share of a time that a local search has spent."""
        steps = seconds * OFFLOAD.ops_per_s / problem.num_ops
        began_s = self.clock.elapsed_s

        def share() -> float:
            if self.watch.stop.is_set():
                return 1.0
            if self.options.deterministic:
                return search.steps / max(1.0, steps)
            return (self.clock.elapsed_s - began_s) / max(1e-9, seconds)

        return share

    def _go_on(self, base: Result) -> None:
        """Continue the search without offloads from its best schedule."""
        name, _, choice, *_ = self.space.all_candidates[0]
        options = replace(self.options, time_limit_s=self.clock.left_s()).going_on_from(base)
        one = OneCandidate(Candidate(name, base.problem, choice))
        found = one.search(options, SearchWatch(self._take_incumbent, self.watch.stop))
        self._take(found.result)

    # Answers

    def _is_over(self) -> bool:
        """Return True if the time is over, or a bound proves the best answer good enough."""
        if self.clock.is_over():
            return True
        value_us = None if self.best is None else self.best.value_us
        if self.best is None or value_us is None:
            return False
        bound_us = min(value_us, self.bound.of(self.best.problem, self.best.schedule).bound_us)
        return relative_gap(value_us, bound_us) <= self.options.gap

    def _take_plan(self, problem: Problem, found: EvaluatedSchedule | None) -> None:
        if found is not None:
            self.plans.append(_Plan(problem, found))
            self._take(judged_result(problem, found, 0))

    def _take_incumbent(self, incumbent: Incumbent) -> None:
        self._take(incumbent.as_result(incumbent.elapsed_s, StoppedBy.TIME_LIMIT))

    def _take(self, found: Result) -> None:
        """Keep a result if it is better, and tell it with the bound that holds with offloads."""
        if found.value_us is None:
            self.best = self.best or found
            return
        if self.best is not None and rank_key(self.best.value_us) <= rank_key(found.value_us):
            return
        self.best = found
        incumbent = replace(self._bounded(found), wall_s=self.clock.elapsed_s).as_incumbent()
        if incumbent is not None:
            self.told(incumbent)

    def _bounded(self, found: Result) -> Result:
        """Return a result with the bound that holds with offloads."""
        bound = self.bound.of(found.problem, found.schedule)
        least_us = bound.bound_us
        return replace(
            found,
            lower_bound_us=least_us if found.value_us is None else min(least_us, found.value_us),
            certificate=bound.certificate,
            bound_scope=bound.scope,
        )

    def _answer(self, base: Ranking) -> Ranking:
        best = self.best
        assert best is not None
        result = self._bounded(best)
        if result.value_us is None:
            result = self._without_schedule(result)
        else:
            reason = reason_of_end(
                result.value_us,
                result.lower_bound_us,
                self.options.gap,
                is_interrupted=self.watch.stop.is_set(),
                is_exhausted=False,
            )
            result = replace(result, stopped_by=reason)
        baselines = base.result.baselines
        result = replace(result, baselines=baselines, wall_s=self.clock.elapsed_s)
        return Ranking(result, self._trials(base, result))

    def _is_infeasible(self, result: Result) -> bool:
        """Return True if a proof of infeasibility holds with offloads, too.

        It does where ranks hold one stage: an activation is there with F and again with B.
        """
        held = (
            stages for one in self.space.all_candidates for stages in one.problem.placement.held
        )
        is_single = all(len(stages) == 1 for stages in held)
        return result.stopped_by == StoppedBy.INFEASIBLE and is_single

    def _without_schedule(self, result: Result) -> Result:
        """Return a result without schedule, which is a proof only if it holds with offloads."""
        if result.stopped_by != StoppedBy.INFEASIBLE or self._is_infeasible(result):
            return result
        message = (
            "no schedule was found, with offloads or without; allow more memory or more time, or "
            "give §recompute auto"
        )
        return replace(result, stopped_by=StoppedBy.TIME_LIMIT, message=message)

    def _trials(self, base: Ranking, result: Result) -> tuple[Trial, ...]:
        """Return the candidates of the search without offloads, and the answer with them."""
        trials = [
            replace(one, lower_bound_us=min(one.lower_bound_us, self.bound.own_us(one.problem)))
            for one in base.trials
        ]
        if result.schedule is None or not trials:
            return tuple(trials)
        if result.schedule.offloads:
            name = self.space.name_of(result.problem)
            candidate = Candidate(f"{name} ({result.found_by})", result.problem)
            least_us = result.lower_bound_us
            trials.append(Trial(candidate, least_us, result, is_over=True, is_fixed=True))
        else:  # the last step may have gone on with one of them
            key = problem_key(result.problem)
            here = next((one for one in trials if problem_key(one.problem) == key), None)
            if here is not None and rank_key(result.value_us) < rank_key(here.value_us):
                here.found = result
        return tuple(sorted(trials, key=lambda one: rank_key(one.value_us)))


def _unlimited(space: OneCandidate | Placements) -> OneCandidate | Placements:
    """Return a space without memory limits."""
    if isinstance(space, OneCandidate):
        return replace(space, candidate=_uncapped(space.candidate))
    return replace(space, candidates=tuple(map(_uncapped, space.candidates)))


def _uncapped(candidate: Candidate) -> Candidate:
    return candidate.on(replace(candidate.problem, caps_bytes=None))
