"""Choosing placement and partition by a race: published schedules first, then timed trials.

1. The published schedules of all candidates are judged (see `judging`).
2. Each candidate whose best published schedule is near the best of all gets a short trial, the best
   few a longer one, and the best one the remaining time.
3. With a search for partitions, further partitions of a placement become candidates.

A trial starts from the best schedule found for its candidate; if recomputation is to be chosen, the
stages that recompute in it are one of the choices. A candidate is pruned once its lower bound
proves that it cannot win. Time that a trial leaves is for those after it.

Rounds of fewer and fewer candidates with more and more time are sequential halving (Karnin, Koren
and Somekh, ICML 2013), also known as successive halving (Jamieson and Talwalkar, AISTATS 2016).
That a bound prunes a trial before its time is over is racing (Maron and Moore, NeurIPS 1993;
Birattari et al., GECCO 2002).
"""

from collections.abc import Sequence
from dataclasses import replace

from synth.plan.choose.announcer import Announcer
from synth.plan.choose.candidates import (
    Candidate,
    Partitioning,
    Ranking,
    SearchWatch,
    Trial,
    decided,
)
from synth.plan.choose.cut_trials import CutTrials
from synth.plan.choose.first_trials import FirstTrials
from synth.plan.choose.given_orders import best_of_given_orders
from synth.plan.choose.less_memory import fits_less_memory, less_memory_trial
from synth.plan.choose.partition_trials import PartitionTrials
from synth.plan.choose.race_state import RaceState
from synth.plan.choose.ranking import final_ranking
from synth.plan.recompute.repartition import solve_repartitioning
from synth.plan.tuning import CUT_MOVES, RACE
from synth.profile import Profile
from synth.solver.options import Part, SolveOptions
from synth.solver.result import Result
from synth.solver.watch import SolveWatch


def solve_best_of(
    candidates: Sequence[Candidate],
    profile: Profile,
    partitioning: Partitioning = Partitioning.EVEN,
    options: SolveOptions | None = None,
    watch: SearchWatch | None = None,
) -> Ranking:
    """Find the best schedule over all candidates.

    Args:
        candidates: at least one, all of one objective; the first ones win ties. Those with given
            orders are searched for their partitions and recomputed layers alone.
        profile: the profile of the candidates' costs.
        partitioning: given, even or searched; a search begins with those given.
        options: the time limit is for all candidates together; a hint is ignored.
        watch: told of improvements over all candidates, on the problem of a trial.

    Returns:
        The best result, whose bound holds for all candidates, and all trials.
    """
    options, watch = options or SolveOptions(), watch or SearchWatch()
    if all(candidate.order is not None for candidate in candidates):
        return best_of_given_orders(candidates, profile, partitioning, options, watch)
    return _Race(candidates, profile, partitioning, options, watch).run()


class _Race:
    """The steps of a race: judging, the search for partitions, and timed trials."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        profile: Profile,
        partitioning: Partitioning,
        options: SolveOptions,
        watch: SearchWatch,
    ) -> None:
        self.profile, self.options, self.stop = profile, options, watch.stop
        self.clock = options.clock(watch.stop, RACE.least_share_of_limit)
        self.race = RaceState(list(map(decided, candidates)), partitioning, options.gap)
        self.announcer = Announcer(self.race, self.clock, watch)
        self.first = FirstTrials(profile, options, self.announcer)
        self.cut_halving = self.first.cut_halving
        self.partitions = PartitionTrials(profile, options, self.race, self.clock, self.first.cuts)
        self.cuts = CutTrials(profile, self.race, self.first.cuts)
        self.cuts_may_move = partitioning == Partitioning.SEARCHED
        self.is_exhausted = False  # nothing is left to try

    def run(self) -> Ranking:
        self.first.run()
        race, limit_s = self.race, self.options.time_limit_s
        if race.partitioning == Partitioning.SEARCHED and not self.cut_halving.can_begin:
            self._move_cuts()
            self._add_partitions(self.partitions.worth_partitioning())
        if is_one_cut := self.cut_halving.can_begin:
            self._anneal_cuts()
            if linear := race.best_with_bounds:  # of all its partitions, which tell more than rungs
                is_one_cut = False
                self._add_partitions([linear])
        elif len(race.trials) > 1:
            first_s = RACE.first_share_of_left * self.clock.left_s(limit_s)
            self._round(race.first_round(first_s), self.clock.moment_s(RACE.first_share_of_left))
        if race.bounds_all_partitions:  # leaves out what cannot win, before it gets more time
            self.partitions.raise_bounds(self.clock.moment_s(RACE.bounds_share_of_left))
            self._try_further()
        if not is_one_cut and len(near := race.near()[: RACE.few]) > 1:
            self._round(near, self.clock.moment_s(RACE.second_share_of_left))
        if not (is_one_cut or race.bounds_all_partitions):
            self._try_less_memory()
        self._spend_rest(is_one_cut=is_one_cut)
        if race.is_untried:
            self._try(race.trials[0], limit_s)  # even without time
        return final_ranking(
            race,
            self.clock.elapsed_s,
            is_interrupted=self.stop.is_set(),
            is_exhausted=self.is_exhausted,
        )

    def _spend_rest(self, *, is_one_cut: bool) -> None:
        """Search on the trials that may still become the best, until the time is over.

        Args:
            is_one_cut: annealing has chosen the cut, and only its trial is searched.
        """
        race, limit_s = self.race, self.options.time_limit_s
        while self.clock.has_time(limit_s):
            near, promising = race.near(), race.promising()
            if near and is_one_cut and race.has_placements:
                self._try(near[0], self.clock.left_s(limit_s))
            elif near and not race.gap_is_of_others(near[0], promising):
                untried = [trial for trial in near if not trial.num_searches]
                # The best one is searched again, for as long as one of those that wait.
                num_searches = len(untried) + bool(near[0].num_searches) + race.untried_can_win
                part_s = self.clock.left_s(limit_s) / num_searches
                trial = (*untried, near[0])[0]
                if is_one_cut:
                    self._try(trial, part_s)
                else:
                    share = CUT_MOVES.search_share_of_left if self.cuts_may_move else 1
                    self._try(trial, share * part_s)
                    self._move_cuts()
            elif not (self._try_further() or self._try_least(promising) or race.take_back()):
                self.is_exhausted = self.clock.has_time(limit_s)
                break

    def _add_partitions(self, candidates: Sequence[Candidate]) -> None:
        """Search for partitions of some placements, and add those that look best."""
        until_s = self.clock.moment_s(self.partitions.share_of_left(candidates))
        for new in self.partitions.first(candidates, until_s):
            self.race.trials += new
            if self.race.bounds_all_partitions:
                self.first.list_on(new, until_s)
            self.first.judge(new, until_s)

    def _anneal_cuts(self) -> None:
        """Anneal the cuts that look best, and leave the best one of each placement in the race."""
        race, until_s = self.race, self.clock.moment_s(self.cut_halving.share_of_left)
        self.cut_halving.run(until_s, self.first.tell, self._move_cuts)
        if race.has_placements:
            race.keep_best_of_each()
            self.first.tighten()
        elif race.best is not None:
            race.keep_only(race.best)
        self.announcer.tell_trials()

    def _move_cuts(self) -> None:
        """Add a trial of the best order on a better cut, if partitions are searched."""
        if self.race.partitioning != Partitioning.SEARCHED:
            return
        until_s = self.clock.moment_s(CUT_MOVES.share_of_left)
        charged = 0

        def should_stop(num_ops: int) -> bool:
            nonlocal charged
            self.clock.grant((num_ops - charged) / CUT_MOVES.ops_per_s)
            charged = num_ops
            return not self.clock.has_time(until_s)

        found = self.cuts.next(should_stop)
        self.cuts_may_move = found is not None
        if found is not None:
            self.first.tell(self.race.add(found))

    def _try_less_memory(self) -> None:
        """Run the race of the best placement under a lower limit, for a part of the time."""
        limit_s = RACE.less_memory_share_of_left * self.clock.left_s()
        if not self.options.tries_less_memory or limit_s < self.clock.least_s:
            return
        if fits_less_memory(self.race):
            return
        profile, partitioning = self.profile, self.race.partitioning
        options = replace(self.options, time_limit_s=limit_s, tries_less_memory=False, hint=None)
        watch = SearchWatch(stop=self.stop)

        def solve(lower: Candidate) -> Result:
            self.clock.grant(limit_s)
            return solve_best_of([lower], profile, partitioning, options, watch).result

        new = less_memory_trial(self.race, solve)
        if new is not None:
            self.first.tell(self.race.add(new))

    def _try_further(self) -> bool:
        """Try further partitions that look good; return False if there are none."""
        trials, until_s = self.race.trials, self.clock.moment_s(RACE.further_share_of_left)
        began = len(trials)
        while self.clock.has_time(until_s) and (further := self.partitions.next(until_s)):
            trials.append(further)
            self._try(further, self.clock.left_s(until_s) / 2)
        return len(trials) > began

    def _try_least(self, promising: Sequence[Trial]) -> bool:
        """Try the trial or partition with the least bound; return False if there is none."""
        race, limit_s = self.race, self.options.time_limit_s
        least = [*promising, *self.partitions.least(limit_s)]
        if not least or not self.clock.has_time(limit_s):
            return False
        one = min(least, key=lambda trial: trial.lower_bound_us)
        if one not in promising:
            race.trials.append(one)
        is_last = one in promising and len(least) == 1
        self._try(one, (1 if is_last else RACE.further_share_of_left) * self.clock.left_s(limit_s))
        return True

    def _round(self, trials: Sequence[Trial], until_s: float) -> None:
        for trial, seconds in self.clock.shared(trials, until_s):
            self._try(trial, seconds)

    def _try(self, trial: Trial, limit_s: float) -> None:
        """Search on a candidate from its best schedule; the first trial runs even without time."""
        is_late = self.stop.is_set() or limit_s <= 0
        if not self.race.is_untried and (is_late or not self.race.can_win(trial)):
            return
        self.clock.grant(limit_s)
        options = replace(self.options, time_limit_s=limit_s, hint=None)
        is_known = self.race.best_us is not None and limit_s < max(
            RACE.least_for_families_s, RACE.families_s_per_op * trial.problem.num_ops
        )
        if trial.is_judged or is_known:
            options = replace(options, without=options.without | {Part.FAMILIES})
        start = trial.found or self.race.best_of(trial.name)
        if start is not None:
            options = options.going_on_from(start)
        trial.take(self._solve(trial, options))
        self.announcer.tell_trials()

    def _solve(self, trial: Trial, options: SolveOptions) -> Result:
        return solve_repartitioning(
            self.profile if self.race.partitioning == Partitioning.EVEN else None,
            trial.candidate.problem,
            trial.candidate.choice,
            options,
            SolveWatch(self.announcer.listener(trial), self.stop),
            trial.attempts,
        )
