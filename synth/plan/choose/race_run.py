"""Choosing placement and partition by a race: published schedules first, then timed trials.

1. The published schedules of all candidates are judged (see `judging`).
2. Each candidate whose best published schedule is near the best of all gets a short trial, the best
   few a longer one, and the best one the remaining time.
3. With a search for partitions, further partitions of a placement become candidates.

A trial starts from the best schedule found for its candidate; if recomputation is to be chosen, the
stages that recompute in it are one of the choices. A candidate is out once its lower bound proves
that it cannot win. Time that a trial leaves is for those after it.

Rounds of fewer and fewer candidates with more and more time are sequential halving (Karnin, Koren
and Somekh, ICML 2013), also known as successive halving (Jamieson and Talwalkar, AISTATS 2016).
That a proof ends a trial is the racing of Maron and Moore (NeurIPS 1993).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from synth.plan.choose.announcer import Announcer
from synth.plan.choose.candidates import (
    Candidate,
    OnStandings,
    Partitioning,
    Ranking,
    Trial,
    decided,
)
from synth.plan.choose.cut_race import CutRace
from synth.plan.choose.cut_trials import CutTrials
from synth.plan.choose.given_orders import best_of_given_orders
from synth.plan.choose.judging import (
    infeasible_result,
    is_quick,
    judge,
    offloading_trial,
    repartitioned_trials,
)
from synth.plan.choose.less_memory import fits_less_memory, less_memory_trial
from synth.plan.choose.listed_trials import ListedTrials
from synth.plan.choose.partition_trials import PartitionTrials
from synth.plan.choose.published import Pass
from synth.plan.choose.published_cuts import PublishedCuts, PublishedTrials
from synth.plan.choose.standings import Standings
from synth.plan.recompute.repartition import solve_repartitioning
from synth.plan.tuning import CUT_MOVES, CUT_RACE, JUDGING, LISTED_TRIALS, RACE
from synth.profile import Profile
from synth.search.outcome import rank_key
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.lower_limits import made_for_lower_limits
from synth.solver.options import Part, SolveOptions
from synth.solver.result import Result, judged_result
from synth.solver.watch import OnImprovement, SolveWatch


def solve_best_of(
    candidates: Sequence[Candidate],
    profile: Profile,
    partitioning: Partitioning = Partitioning.EVEN,
    options: SolveOptions | None = None,
    on_improvement: OnImprovement | None = None,
    stop: threading.Event | None = None,
    on_standings: OnStandings = lambda trials: None,
) -> Ranking:
    """Find the best schedule over all candidates.

    Args:
        candidates: at least one, all of one objective; the first ones win ties. Those with given
            orders are searched for their partitions and recomputed layers alone.
        profile: the profile of the candidates' costs.
        partitioning: given, even or searched; a search begins with those given.
        options: the time limit is for all candidates together; a hint is ignored.
        on_improvement: called with improvements over all candidates, on the problem of a trial.
        stop: ends the race with the best so far.
        on_standings: called after each step with copies of all trials, best first.

    Returns:
        The best result, whose bound holds for all candidates, and all trials.
    """
    options, stop = options or SolveOptions(), stop or threading.Event()
    if all(candidate.order is not None for candidate in candidates):
        return best_of_given_orders(
            candidates, profile, partitioning, options, on_improvement, stop, on_standings
        )
    run = _RaceRun(candidates, profile, partitioning, options, on_improvement, stop, on_standings)
    return run.run()


class _RaceRun:
    """The steps of a race: judging, the search for partitions, and timed trials."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        profile: Profile,
        partitioning: Partitioning,
        options: SolveOptions,
        on_improvement: OnImprovement | None,
        stop: threading.Event,
        on_standings: OnStandings,
    ) -> None:
        self.profile, self.options, self.on_standings = profile, options, on_standings
        self.stop, self.clock = stop, options.clock(stop, RACE.least_share_of_limit)
        self.race = Standings(list(map(decided, candidates)), partitioning, options.gap)
        self.announcer = Announcer(self.race, self.clock, on_improvement)
        self.published = PublishedCuts(profile, self.race)
        cuts = self.published.searches.cuts
        self.partitions = PartitionTrials(profile, options, self.race, self.clock, cuts)
        self.cuts = CutTrials(profile, self.race, cuts)
        self.listed = ListedTrials(profile, self.race, cuts, waits=options.deterministic)
        self.cut_race = CutRace(self.race, options, self.clock)
        self.cuts_may_move = partitioning == Partitioning.SEARCHED
        self.late_ops = 0  # judged after the time for it was over
        self.is_over = False  # nothing is left to try

    def _begin(self) -> None:
        """Judge published schedules, and search for partitions if asked for."""
        race = self.race
        race.trials = [race.new(candidate, is_quick=True) for candidate in race.candidates]
        self.on_standings(race.copies())
        # Next come their best partitions, these among them, or else a search that needs the time.
        is_on_one = len(race.candidates) == 1 and race.partitioning != Partitioning.SEARCHED
        share = JUDGING.first_cut_share if race.has_many_cuts or is_on_one else 1
        until_s = self.clock.moment_s(share * JUDGING.with_r_share_of_left)
        plain_s = self.clock.moment_s(share * JUDGING.published_share_of_left)
        self._judge(race.trials, until_s, plain_s)
        race.is_judged = race.best_us is not None
        for trial in race.trials:
            if not self.stop.is_set() and (nothing := infeasible_result(trial)) is not None:
                trial.take(nothing)
        lists_first = self.cut_race.is_of_several
        if race.partitioning != Partitioning.GIVEN:
            self._repartition(until_s)
            if lists_first:
                self._list_schedules()
            self._start_from_published_cuts()
        if not lists_first:
            self._start_from_lower_limits(self.clock.moment_s(RACE.lower_limits_share_of_left))
            if race.partitioning != Partitioning.GIVEN:
                self._list_schedules()
        if race.partitioning != Partitioning.SEARCHED or self.cut_race.can_begin:
            return
        self._move_cuts()
        self._add_partitions(self.partitions.worth_partitioning())

    def _add_partitions(self, candidates: Sequence[Candidate]) -> None:
        """Search for partitions of some placements, and add those that look best."""
        until_s = self.clock.moment_s(self.partitions.share_of_left(candidates))
        for new in self.partitions.first(candidates, until_s):
            self.race.trials += new
            self._judge(new, until_s)

    def _list_schedules(self) -> None:
        """Add the placements' best list schedules, on the cuts of the least bounds."""
        share, is_one = LISTED_TRIALS.share_of_left, self.cut_race.applies
        if is_one:
            share = LISTED_TRIALS.share_of_left_of_one
        if self.cut_race.is_of_several:
            share = LISTED_TRIALS.share_of_left_of_several
        should_stop = self._stops_at(self.clock.moment_s(share))

        def charge(ops: int) -> None:
            self.clock.grant(ops / LISTED_TRIALS.ops_per_s if self.options.deterministic else 0.0)

        if self.cut_race.is_of_several:
            found = self.listed.of_several(should_stop, charge)
        elif is_one:
            first, *_ = self.race.candidates
            descends_s = self.clock.moment_s(LISTED_TRIALS.least_bound_share * share)
            found = self.listed.of_one(first, self._stops_at(descends_s), should_stop, charge)
        else:
            found = self.listed.all(should_stop, charge)
        for trial in found:
            self._tell(self.race.add(trial))

    def _stops_at(self, until_s: float) -> Callable[[], bool]:
        """Return a function that is true from a moment on, or once the search is stopped."""
        return lambda: self.stop.is_set() or self.clock.left_s(until_s) <= 0

    def _judge(
        self, those: Sequence[Trial], until_s: float, until_plain_s: float | None = None
    ) -> None:
        """Judge the published schedules on some candidates until a moment of the search.

        Args:
            until_plain_s: the moment for schedules as published, without R; None: the same, and
                candidates without a schedule get no more.
        """

        def charge(ops: int, step: Pass, needs_one: bool) -> bool:
            if self.stop.is_set():
                return True
            spent_s = ops * JUDGING.s_per_op
            if self.options.deterministic:
                self.clock.grant(ops / JUDGING.ops_per_s)
                spent_s = 0.0
            end_s = until_plain_s if step.is_plain and until_plain_s is not None else until_s
            if self.clock.left_s(end_s) >= spent_s:
                return False
            is_due = needs_one and until_plain_s is not None
            return not (is_due and self._is_due(ops, step))

        judge(those, charge, self._tell, lambda: None if until_plain_s is None else self._tighten())

    def _tell(self, trial: Trial) -> None:
        """Announce the schedule of a trial and the standings."""
        self.announcer.announce_judged(trial)
        self.on_standings(self.race.copies())

    def _tighten(self) -> None:
        """Improve the quick bounds while there is time, and announce the better one."""
        race = self.race
        for trial in race.trials:
            if self.clock.is_over():
                return
            race.tighten(trial)
        for trial in race.trials:
            if trial.value_us is not None and trial.value_us == race.best_us:
                self.announcer.announce_judged(trial)

    def _is_due(self, ops: int, step: Pass) -> bool:
        """Return True if a candidate without a schedule gets this one although it is late.

        Work counts there instead of time, so that every candidate has a schedule at any load: the
        first one of all by any pass, the others by quick ones.
        """
        ops *= JUDGING.late_timed_cost if step in (Pass.TIMED, Pass.AVERAGED) else 1
        is_first = self.race.best_us is None
        most = JUDGING.first_ops if is_first else JUDGING.late_ops
        is_due = (is_first or is_quick(step)) and self.late_ops + ops <= most
        is_due = is_due or not self.late_ops
        self.late_ops += ops if is_due else 0
        return is_due

    def _anneal_cuts(self) -> None:
        """Anneal the cuts that look best, and leave the best one of each placement in the race."""
        race, until_s = self.race, self.clock.moment_s(self.cut_race.share_of_left)
        self.cut_race.run(until_s, self._tell, self._move_cuts)
        if race.has_placements:
            race.keep_best_of_each()
        elif race.best is not None:
            race.keep_only(race.best)
        self.on_standings(race.copies())

    def _start_from_published_cuts(self) -> None:
        """Add the best partitions of the published schedules, each with its best schedule."""
        race = self.race
        until_s, num_ops = 0.0, 0

        def charge(ops: int) -> None:
            nonlocal num_ops
            num_ops += ops
            self.clock.grant(ops / JUDGING.ops_per_s if self.options.deterministic else 0.0)

        def should_stop() -> bool:
            is_enough = least_ops <= num_ops
            end_s = until_s if is_enough else self.options.time_limit_s
            return self.stop.is_set() or self.clock.left_s(end_s) <= 0

        judged = race.trials[: len(race.candidates)]
        least_ops = 0 if self.cut_race.is_of_several else RACE.published_cuts_least_ops
        found = []
        for those, search, share in self._published_searches(judged):
            until_s = self.clock.moment_s(share)
            for trial in search(those, should_stop, charge):
                found.append(trial)
                race.trials.append(trial)
                self.announcer.announce_judged(trial)
        # Later steps ask for its cuts, too.
        self.published.searches.should_stop = self.stop.is_set
        rows = {trial.name: trial.published for trial in judged}
        for trial in found:
            trial.published = rows[trial.name]

    def _start_from_lower_limits(self, until_s: float) -> None:
        """Take the schedules that families make for lower limits, on the best partitions."""
        for trial in self.race.near()[: RACE.few]:
            problem = trial.problem
            if trial.candidate.choice or problem.recomputed_layers:
                continue
            for name, schedule in made_for_lower_limits(problem):
                if self.stop.is_set() or self.clock.left_s(until_s) <= 0:
                    return
                if self.options.deterministic:
                    cost = JUDGING.late_timed_cost * problem.num_ops
                    self.clock.grant(cost / JUDGING.ops_per_s)
                found = evaluate(problem, schedule, name)
                if found is not None and rank_key(found.value_us) < rank_key(trial.value_us):
                    trial.found = judged_result(problem, found, trial.lower_bound_us)
                    self.announcer.announce_judged(trial)

    def _published_searches(
        self, judged: Sequence[Trial]
    ) -> Iterator[tuple[Sequence[Trial], PublishedTrials, float]]:
        """Yield placements, a search for their partitions, and its share of the remaining time.

        A single placement has nearly all the time, to be no worse than these. Of several that are
        annealed, those far behind the best come last.
        """
        both = (self.published.on_candidates, self.published.searched)
        if self.cut_race.is_of_several:
            near = [one for one in judged if self.race.is_near(one.name, CUT_RACE.near_factor)]
            far = [one for one in judged if one not in near]
            for those, share in zip((near, far), CUT_RACE.published_shares_of_left, strict=True):
                yield from ((those, search, share) for search in both)
            return
        share = RACE.published_cuts_share_of_left
        is_alone = len(self.race.candidates) == 1
        yield judged, both[0], RACE.candidate_cuts_share_of_left if is_alone else share
        many = RACE.many_cuts_share_of_left
        yield judged, both[1], many if self.race.has_many_cuts else share

    def _repartition(self, until_s: float) -> None:
        """Add candidates partitioned for the stages that the best published schedules recompute."""
        race = self.race
        for trial in list(repartitioned_trials(self.profile, race.trials, self._stops_at(until_s))):
            self._judge([trial], until_s)
            if trial.found is not None and race.can_win(trial):
                trial.candidate = trial.candidate._replace(choice=None)
                trial.published = ()  # the table shows those without recomputation
                race.trials.append(trial)
        race.trials += [
            one for trial in race.trials if (one := offloading_trial(trial)) is not None
        ]

    def run(self) -> Ranking:
        self._begin()
        race, limit_s = self.race, self.options.time_limit_s
        if is_one_cut := self.cut_race.can_begin:
            self._anneal_cuts()
            if linear := race.best_with_bounds:  # of all its partitions, which tell more than heats
                is_one_cut = False
                self._add_partitions([linear])
        elif len(race.trials) > 1:
            first_s = RACE.first_share_of_left * self.clock.left_s(limit_s)
            self._round(race.first_round(first_s), self.clock.moment_s(RACE.first_share_of_left))
        if not is_one_cut and len(near := race.near()[: RACE.few]) > 1:
            self._round(near, self.clock.moment_s(RACE.second_share_of_left))
        if race.bounds_all_partitions:
            self.partitions.raise_bounds(self.clock.moment_s(RACE.bounds_share_of_left))
            self._try_further()
        if not is_one_cut:
            self._try_less_memory()
        while self.clock.has_time(limit_s):
            near, promising = race.near(), race.promising()
            if near and is_one_cut and race.has_placements:
                self._try(near[0], self.clock.left_s(limit_s))
            elif near and not race.is_of_others(near[0], promising):
                untried = [trial for trial in near if not trial.num_searches]
                # The best one is searched again, for as long as one of those that wait.
                num_searches = len(untried) + bool(near[0].num_searches) + race.others_can_win
                part_s = self.clock.left_s(limit_s) / num_searches
                if is_one_cut:
                    self._try((*untried, near[0])[0], part_s)
                    continue
                share = CUT_MOVES.search_share_of_left if self.cuts_may_move else 1
                self._try((*untried, near[0])[0], share * part_s)
                self._move_cuts()
            elif not self._try_further() and not self._try_least(promising):
                self.is_over = self.clock.has_time(limit_s)
                break
        if race.is_untried:
            self._try(race.trials[0], limit_s)  # even without time
        return race.answer(
            self.clock.elapsed_s, is_interrupted=self.stop.is_set(), is_over=self.is_over
        )

    def _move_cuts(self) -> None:
        """Add a trial of the best order on a better cut, if partitions are searched."""
        if self.race.partitioning != Partitioning.SEARCHED:
            return
        until_s = self.clock.moment_s(CUT_MOVES.share_of_left)
        charged = 0

        def should_stop(num_ops: int) -> bool:
            nonlocal charged
            if self.options.deterministic:
                self.clock.grant((num_ops - charged) / CUT_MOVES.ops_per_s)
            charged = num_ops
            return not self.clock.has_time(until_s)

        found = self.cuts.next(should_stop)
        self.cuts_may_move = found is not None
        if found is not None:
            self._tell(self.race.add(found))

    def _try_less_memory(self) -> None:
        """Run the race of the best placement under a lower limit, for a part of the time."""
        limit_s = RACE.less_memory_share_of_left * self.clock.left_s()
        if not self.options.tries_less_memory or limit_s < self.clock.least_s:
            return
        if fits_less_memory(self.race):
            return
        options = replace(self.options, time_limit_s=limit_s, tries_less_memory=False)
        given = self.profile, self.race.partitioning, replace(options, hint=None)

        def solve(lower: Candidate) -> Result:
            self.clock.grant(limit_s)
            return solve_best_of([lower], *given, stop=self.stop).result

        new = less_memory_trial(self.race, solve)
        if new is not None:
            self._tell(self.race.add(new))

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

    def _round(self, those: Sequence[Trial], until_s: float) -> None:
        for trial, seconds in self.clock.shared(those, until_s):
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
        self.on_standings(self.race.copies())

    def _solve(self, trial: Trial, options: SolveOptions) -> Result:
        return solve_repartitioning(
            self.profile if self.race.partitioning == Partitioning.EVEN else None,
            trial.candidate.problem,
            trial.candidate.choice,
            options,
            SolveWatch(self.announcer.listener(trial), self.stop),
            trial.attempts,
        )
