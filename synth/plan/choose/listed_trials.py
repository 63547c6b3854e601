"""Trials on the cuts of the least bounds, each with its best list schedule as result.

Published schedules are made for equal stages and fast links. Where links are slow and memory is
tight, none of them shows what a placement can do, and a race that goes by them alone searches the
wrong one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from synth.costs.partition_costs import partition_costs
from synth.plan.choose.candidates import Candidate, Trial
from synth.plan.choose.cut_trials import CutsOf
from synth.plan.choose.judging import judged_result
from synth.plan.choose.standings import Standings
from synth.plan.tuning import LISTED_TRIALS
from synth.profile import Profile
from synth.schedule.model import SMALLEST_BUFFERING
from synth.solver.evaluate.evaluate import evaluate_order
from synth.solver.improve import list_scheduling
from synth.solver.infeasibility import may_fit
from synth.solver.instance.memory_models import safe_memory


class ListedTrials:
    """Makes trials with list schedules, at most one for each placement."""

    def __init__(self, profile: Profile, race: Standings, cuts: CutsOf) -> None:
        self.profile, self.race, self.cuts = profile, race, cuts

    def all(
        self, should_stop: Callable[[], bool], charge: Callable[[int], None]
    ) -> Iterator[Trial]:
        """Yield the trials that are better than the published schedules of their placement.

        Placements come in the order of their least bounds.

        Args:
            should_stop: ends the search.
            charge: told of the ops that were placed.
        """
        admitted = []
        for candidate in self.race.candidates:
            if candidate.choice in ((), None) and not should_stop():
                admitted.append(self._least(candidate))
        for those in sorted(admitted, key=lambda those: those[0].lower_bound_us if those else 0):
            known = [
                one.value_us for one in self.race.trials if one.name in {t.name for t in those}
            ]
            best_us = min((us for us in known if us is not None), default=None)
            best = None
            for trial in those:
                if should_stop():
                    break
                self._list(trial, should_stop)
                charge(LISTED_TRIALS.rules * trial.problem.num_ops)
                if trial.value_us is not None and (best_us is None or trial.value_us < best_us):
                    best, best_us = trial, trial.value_us
            if best is not None:
                yield best

    def _least(self, candidate: Candidate) -> list[Trial]:
        """Return trials on the cuts of the least bounds that may win, the least one first."""
        problem = candidate.problem
        trials = []
        for sizes in self.cuts(problem.placement):
            costs = partition_costs(self.profile, sizes)
            moved = replace(problem, costs=costs, partition=sizes, partition_is_best=False)
            if may_fit(moved):
                trials.append(self.race.new(candidate.on(moved), is_quick=True))
        able = filter(self.race.can_win, trials)
        return sorted(able, key=lambda trial: trial.lower_bound_us)[: LISTED_TRIALS.cuts]

    def _list(self, trial: Trial, should_stop: Callable[[], bool]) -> None:
        """Set the best list schedule of a few rules as the result of a trial."""
        problem = trial.problem
        instance = safe_memory(problem, SMALLEST_BUFFERING)
        effort = LISTED_TRIALS.rules * instance.num_ops
        found = list_scheduling.search(instance, problem.objective, effort, 0, should_stop)
        if not found:
            return
        best, _ = found[0]
        schedule = evaluate_order(
            problem, best.programs(instance), "list scheduling", best.value_us, should_stop
        )
        if schedule is not None:
            trial.found = judged_result(problem, schedule, trial.lower_bound_us)
