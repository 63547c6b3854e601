"""The best schedule of a search with offloads, with its bound, and the table of candidates."""

from collections.abc import Sequence
from dataclasses import replace

from synth.plan.choose.candidates import Candidate, Ranking, Trial
from synth.plan.offload.bound_of_answer import AnswerBound, problem_key
from synth.plan.search_space import OneCandidate, Placements
from synth.search.best_so_far import BestSoFar
from synth.search.clock import Clock
from synth.search.outcome import StoppedBy, rank_key, reason_of_end, relative_gap
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result
from synth.solver.watch import OnImprovement


class BestAnswer:
    """The best result so far; better ones are told with the bound that holds with offloads.

    Args:
        space: of the search without offloads.
        finer: candidates that only schedules with offloads are on.
        gap: at which the search ends.
        clock: of the whole search.
    """

    def __init__(
        self,
        space: OneCandidate | Placements,
        finer: Sequence[Candidate],
        gap: float,
        clock: Clock,
        on_improvement: OnImprovement | None,
    ) -> None:
        self.space, self.finer, self.gap, self.clock = space, finer, gap, clock
        self.told = BestSoFar(on_improvement)
        self.bound = AnswerBound(space, has_finer=bool(finer))
        self.best: Result | None = None

    @property
    def value_us(self) -> int | None:
        """The best value; None if no schedule is known."""
        return None if self.best is None else self.best.value_us

    @property
    def bound_us(self) -> int | None:
        """The bound of the best answer; None if no schedule is known."""
        if self.best is None or self.value_us is None:
            return None
        return min(self.value_us, self.bound.of(self.best.problem, self.best.schedule).bound_us)

    @property
    def is_good_enough(self) -> bool:
        """True if a bound proves that no schedule is better by more than the gap."""
        value_us, bound_us = self.value_us, self.bound_us
        if value_us is None or bound_us is None:
            return False
        return relative_gap(value_us, bound_us) <= self.gap

    def take_incumbent(self, incumbent: Incumbent) -> None:
        """Take a schedule of a search in progress."""
        self.take(incumbent.as_result(incumbent.elapsed_s, StoppedBy.TIME_LIMIT))

    def take(self, found: Result) -> None:
        """Keep a result if it is better, and tell it."""
        if found.value_us is None:
            self.best = self.best or found
            return
        self.bound.add(found.problem)
        if self.best is not None and self._rank(self.best) <= self._rank(found):
            return
        self.best = found
        incumbent = replace(self._bounded(found), wall_s=self.clock.elapsed_s).as_incumbent()
        if incumbent is not None:
            self.told(incumbent)

    def _rank(self, result: Result) -> tuple[tuple[bool, int], bool]:
        """Sort key: of equal values, those that move nothing come first."""
        moves = result.schedule is not None and result.schedule.offloads
        return rank_key(result.value_us), moves

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

    def ranking(self, base: Ranking, *, is_interrupted: bool) -> Ranking:
        """Return the answer and the candidates, given those of the search without offloads."""
        best = self.best
        assert best is not None
        result = self._bounded(best)
        if result.value_us is None:
            result = self._without_schedule(result)
        else:
            reason = reason_of_end(
                result.value_us,
                result.lower_bound_us,
                self.gap,
                is_interrupted=is_interrupted,
                is_exhausted=False,
            )
            result = replace(result, stopped_by=reason)
        baselines = base.result.baselines
        result = replace(result, baselines=baselines, wall_s=self.clock.elapsed_s)
        return Ranking(result, self._trials(base, result))

    def is_infeasible(self, result: Result) -> bool:
        """Return True if a proof of infeasibility holds with offloads, too.

        It does where ranks hold one stage: an activation is there with F and again with B.
        """
        candidates = (*self.space.all_candidates, *self.finer)
        holds_several = any(one.problem.placement.holds_several for one in candidates)
        return result.stopped_by == StoppedBy.INFEASIBLE and not holds_several

    def _without_schedule(self, result: Result) -> Result:
        """Return a result without schedule, which is a proof only if it holds with offloads."""
        if result.stopped_by != StoppedBy.INFEASIBLE or self.is_infeasible(result):
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
        key, name = problem_key(result.problem), self.name_of(result.problem)
        here = next((one for one in trials if problem_key(one.problem) == key), None)
        if result.schedule.offloads:
            name, here = f"{name} ({result.found_by})", None
        if here is None:
            candidate, least_us = Candidate(name, result.problem), result.lower_bound_us
            trials.append(Trial(candidate, least_us, result, is_over=True, is_fixed=True))
        # The last step may have gone on with one of them.
        elif rank_key(result.value_us) < rank_key(here.value_us):
            here.found = result
        return tuple(sorted(trials, key=lambda one: rank_key(one.value_us)))

    def name_of(self, problem: Problem) -> str:
        """Return the name of a problem's placement."""
        where = problem.placement
        finer = (one.name for one in self.finer if one.problem.placement == where)
        return next(finer, None) or self.space.name_of(problem)
