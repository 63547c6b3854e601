"""The first trials of a race: published schedules, their best partitions, and list schedules."""

from collections.abc import Callable, Iterator, Sequence

from synth.plan.choose.announcer import Announcer
from synth.plan.choose.candidates import Partitioning, Trial
from synth.plan.choose.cut_halving import CutHalving
from synth.plan.choose.judging import (
    infeasible_result,
    is_quick,
    judge,
    offloading_trial,
    repartitioned_trials,
)
from synth.plan.choose.list_schedule_trials import ListScheduleTrials
from synth.plan.choose.published import Pass
from synth.plan.choose.published_cuts import PublishedCuts, PublishedTrials
from synth.plan.tuning import CUT_HALVING, JUDGING, LIST_TRIALS, RACE
from synth.profile import Profile
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.lower_limits import made_for_lower_limits
from synth.solver.options import SolveOptions


class FirstTrials:
    """The trials with which a race begins, each with the schedule that is judged best on it."""

    def __init__(self, profile: Profile, options: SolveOptions, announcer: Announcer) -> None:
        race, clock = announcer.race, announcer.clock
        self.profile, self.options, self.race, self.clock = profile, options, race, clock
        self.stop, self.announcer = clock.stop, announcer
        self.cut_halving = CutHalving(race, options, clock)
        self.published = PublishedCuts(profile, race)
        self.cuts = self.published.searches.cuts
        self.listed = ListScheduleTrials(profile, race, self.cuts, waits=options.deterministic)
        self.late_ops = 0  # judged after the time for it was over

    def run(self) -> None:
        """Judge published schedules, also on their best partitions, and list schedules."""
        race = self.race
        race.trials = [race.new(candidate, is_quick=True) for candidate in race.candidates]
        self.announcer.tell_trials()
        # Next come their best partitions, these among them, or else a search that needs the time.
        is_on_one = len(race.candidates) == 1 and race.partitioning != Partitioning.SEARCHED
        share = JUDGING.first_cut_share if race.has_many_cuts or is_on_one else 1
        until_s = self.clock.moment_s(share * JUDGING.with_r_share_of_left)
        plain_s = self.clock.moment_s(share * JUDGING.published_share_of_left)
        self.judge(race.trials, until_s, plain_s)
        race.is_judged = race.best_us is not None
        for trial in race.trials:
            if not self.stop.is_set() and (nothing := infeasible_result(trial)) is not None:
                trial.take(nothing)
        lists_first = self.cut_halving.is_of_several
        if race.partitioning != Partitioning.GIVEN:
            self._repartition(until_s)
            if lists_first:
                self._list_schedules()
            self._start_from_published_cuts()
        if not lists_first:
            self._start_from_lower_limits(self.clock.moment_s(RACE.lower_limits_share_of_left))
            if race.partitioning != Partitioning.GIVEN:
                self._list_schedules()

    def _list_schedules(self) -> None:
        """Add the placements' best list schedules, on the cuts of the least bounds."""
        share, is_one = LIST_TRIALS.share_of_left, self.cut_halving.applies
        if is_one:
            share = LIST_TRIALS.share_of_left_of_one
        if self.cut_halving.is_of_several:
            share = LIST_TRIALS.share_of_left_of_several
        should_stop = self._stops_at(self.clock.moment_s(share))

        charge = self._charge_listed
        if self.cut_halving.is_of_several:
            found = self.listed.of_several(should_stop, charge)
        elif is_one:
            first, *_ = self.race.candidates
            descends_s = self.clock.moment_s(LIST_TRIALS.least_bound_share * share)
            found = self.listed.of_one(first, self._stops_at(descends_s), should_stop, charge)
        else:
            found = self.listed.all(should_stop, charge)
        for trial in found:
            self.tell(self.race.add(trial))

    def list_on(self, trials: Sequence[Trial], until_s: float) -> None:
        """Make list schedules on some candidates until a moment of the search."""
        self.listed.on(trials, self._stops_at(until_s), self._charge_listed)
        for trial in trials:
            self.tell(trial)

    def _charge_listed(self, ops: int) -> None:
        self.clock.grant(ops / LIST_TRIALS.ops_per_s)

    def _stops_at(self, until_s: float) -> Callable[[], bool]:
        """Return a function that is true from a moment on, or once the search is stopped."""
        return lambda: self.stop.is_set() or self.clock.left_s(until_s) <= 0

    def judge(
        self, trials: Sequence[Trial], until_s: float, until_plain_s: float | None = None
    ) -> None:
        """Judge the published schedules on some candidates until a moment of the search.

        Args:
            until_plain_s: the moment for schedules as published, without R; None: the same, and
                candidates without a schedule get no more.
        """

        def charge(ops: int, step: Pass, needs_one: bool) -> bool:
            if self.stop.is_set():
                return True
            self.clock.grant(ops / JUDGING.ops_per_s)
            spent_s = 0.0 if self.options.deterministic else ops * JUDGING.s_per_op
            end_s = until_plain_s if step.is_plain and until_plain_s is not None else until_s
            if self.clock.left_s(end_s) >= spent_s:
                return False
            is_due = needs_one and until_plain_s is not None
            return not (is_due and self._is_due(ops, step))

        judge(trials, charge, self.tell, lambda: None if until_plain_s is None else self.tighten())

    def tell(self, trial: Trial) -> None:
        """Announce the schedule of a trial, and tell of all trials."""
        self.announcer.announce_judged(trial)
        self.announcer.tell_trials()

    def tighten(self) -> None:
        """Improve the quick bounds while there is time, and announce the better one."""
        race = self.race
        for trial in race.trials:
            if self.clock.is_over():
                return
            if not trial.is_fixed:  # its bound is of other schedules
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

    def _start_from_published_cuts(self) -> None:
        """Add the best partitions of the published schedules, each with its best schedule."""
        race = self.race
        until_s, num_ops = 0.0, 0

        def charge(ops: int) -> None:
            nonlocal num_ops
            num_ops += ops
            self.clock.grant(ops / JUDGING.ops_per_s)

        def should_stop() -> bool:
            is_enough = least_ops <= num_ops
            end_s = until_s if is_enough else self.options.time_limit_s
            return self.stop.is_set() or self.clock.left_s(end_s) <= 0

        judged = race.trials[: len(race.candidates)]
        least_ops = 0 if self.cut_halving.is_of_several else RACE.published_cuts_least_ops
        found = []
        for trials, search, share in self._published_searches(judged):
            until_s = self.clock.moment_s(share)
            for trial in search(trials, should_stop, charge):
                found.append(trial)
                race.trials.append(trial)
                self.announcer.announce_judged(trial)
        # Later steps ask for its cuts, too.
        self.published.searches.should_stop = self.stop.is_set
        rows = {trial.name: trial.published for trial in judged}
        for trial in found:
            trial.published = rows[trial.name]

    def _published_searches(
        self, judged: Sequence[Trial]
    ) -> Iterator[tuple[Sequence[Trial], PublishedTrials, float]]:
        """Yield placements, a search for their partitions, and its share of the remaining time.

        A single placement has nearly all the time, to be no worse than these. Of several that are
        annealed, those far behind the best come last.
        """
        both = (self.published.on_candidates, self.published.searched)
        if self.cut_halving.is_of_several:
            near = [one for one in judged if self.race.is_near(one.name, CUT_HALVING.near_factor)]
            far = [one for one in judged if one not in near]
            for trials, share in zip(
                (near, far), CUT_HALVING.published_shares_of_left, strict=True
            ):
                yield from ((trials, search, share) for search in both)
            return
        share = RACE.published_cuts_share_of_left
        is_alone = len(self.race.candidates) == 1
        yield judged, both[0], RACE.candidate_cuts_share_of_left if is_alone else share
        many = RACE.many_cuts_share_of_left
        yield judged, both[1], many if self.race.has_many_cuts else share

    def _start_from_lower_limits(self, until_s: float) -> None:
        """Take the schedules that families make for lower limits, on the best partitions."""
        for trial in self.race.near()[: RACE.few]:
            problem = trial.problem
            if trial.candidate.choice or problem.recomputed_layers:
                continue
            for name, schedule in made_for_lower_limits(problem):
                if self.stop.is_set() or self.clock.left_s(until_s) <= 0:
                    return
                cost = JUDGING.late_timed_cost * problem.num_ops
                self.clock.grant(cost / JUDGING.ops_per_s)
                found = evaluate(problem, schedule, name)
                if found is not None and trial.offer(problem, found):
                    self.announcer.announce_judged(trial)

    def _repartition(self, until_s: float) -> None:
        """Add candidates partitioned for the stages that the best published schedules recompute."""
        race = self.race
        for trial in list(repartitioned_trials(self.profile, race.trials, self._stops_at(until_s))):
            self.judge([trial], until_s)
            if trial.found is not None and race.can_win(trial):
                trial.candidate = trial.candidate._replace(choice=None)
                trial.published = ()  # the table shows those without recomputation
                race.trials.append(trial)
        race.trials += [
            one for trial in race.trials if (one := offloading_trial(trial)) is not None
        ]
