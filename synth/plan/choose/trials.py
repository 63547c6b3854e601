"""Choosing placement and partition: published schedules, trials, longer ones, then the best.

First the published schedules of all candidates are judged (see `judging`). Candidates of which the
best one is far behind have no trial in the first round. Each trial starts from the best schedule
that was found for its candidate before. Where the stages that recompute are chosen, a candidate's
first trial keeps those of that schedule, the second one chooses anew, and so on in turns; without
any schedule every trial chooses. A candidate is out as soon as its proven bound says that it cannot
win, and what an ended trial leaves of its time is for those that come after it.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from synth.certificate import Certificate, ProverName
from synth.plan.choose.candidates import Candidate, Chosen, Partitioning, Trial
from synth.plan.choose.judging import fixed, judge, nothing_fits, num_ops, repartitioned_trials
from synth.plan.choose.race import Race
from synth.plan.partition import bounds
from synth.plan.partition.queue import PartitionQueue
from synth.plan.partition.search import PartitionSearch
from synth.plan.recompute.choice import bound_us, solve_with, why_infeasible
from synth.plan.recompute.layer_choice import without_layers
from synth.plan.recompute.repartition import solve_repartitioning
from synth.plan.recompute.solve import Listeners, OnImprovement
from synth.plan.recompute.stages import recomputed, without_recompute
from synth.profile import Profile
from synth.solve.options import Part, SolveOptions
from synth.solve.problem import Problem
from synth.solve.result import Incumbent, Result, StoppedBy

_ANY_CHOICE = Certificate(prover=ProverName.ANY_CHOICE)

# Of the time that is left, for a trial of every candidate, then for one of the best few. Of the
# time limit, the least for which it is worth to begin once more.
_FIRST_SHARE = 0.3
_SECOND_SHARE = 0.4
_FEW = 3
_LEAST_SHARE = 0.02

# Before these, for looking for partitions, and of that for proofs; and how many partitions have a
# trial, that to begin with among them: of one placement, and of each where there are several.
_PARTITIONS_SHARE = 0.15
_PROOFS_SHARE = 0.6
_PARTITIONS = 3
_PARTITIONS_OF_EACH = 2

# Before all, for published schedules: of the time, at most, for them as they are, and until when
# with R besides; in a search that counts, their ops each second. By the clock, an op is judged in
# so long.
_JUDGING_PUBLISHED_SHARE = 0.6
_JUDGING_SHARE = 0.35
_JUDGED_OPS_PER_S = 20_000
_JUDGED_OP_S = 10e-6

# A trial of the first round has so long at least, for each op of the first candidate.
_TRIAL_S_PER_OP = 200e-6

# Schedules so many times as long as the best at most are worth a first trial, or other partitions.
_WORTH = 1.15

# A trial of less time looks at no published schedules where something is found already.
_LEAST_FOR_FAMILIES_S = 2.0

# Before that, for the partition to begin with, where there are no bounds of all partitions.
_START_SHARE = 0.5

# After them, for partitions that were not among them, and again when all near the best are over, or
# little of what is open is theirs.
_FURTHER_SHARE = 0.25


def solve_best_of(
    candidates: Sequence[Candidate],
    profile: Profile,
    partitioning: Partitioning = Partitioning.EVEN,
    options: SolveOptions | None = None,
    listeners: Listeners = lambda problem: None,
    stop: threading.Event | None = None,
) -> Chosen:
    """The best schedule found for any of the candidates.

    Args:
        candidates: at least one, all of one objective; the first ones win ties.
        profile: of the candidates' costs.
        partitioning: how partitions are made; a search begins with those given.
        options: the time limit is for all candidates together. A hint is for none of them.
        listeners: called with the problem of each trial; who it returns hears of what is better
            than all before.
    """
    options, stop = options or SolveOptions(), stop or threading.Event()
    return _RaceRun(candidates, profile, partitioning, options, listeners, stop).run()


class _RaceRun:
    """The trials so far."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        profile: Profile,
        partitioning: Partitioning,
        options: SolveOptions,
        listeners: Listeners,
        stop: threading.Event,
    ) -> None:
        self.profile, self.options = profile, options
        self.listeners, self.stop = listeners, stop
        self.began = time.monotonic()
        self.granted_s = 0.0
        self.race = Race(list(map(_decided, candidates)), partitioning, options.gap)
        self.num_judged = 0
        self.told_us: tuple[int, int] | None = None
        self.is_over = False  # nothing more can be done, though there is time

    def _begin(self) -> None:
        """Judge published schedules, and look for partitions, if that is asked for.

        Where ranks hold several stages, a partition is best judged by what a good order makes of
        it, so that comes first.
        """
        race = self.race
        race.trials = [race.new(candidate) for candidate in race.candidates]
        until_s = self._moment_s(_JUDGING_SHARE)
        self._judge(race.trials, until_s, self._moment_s(_JUDGING_PUBLISHED_SHARE))
        race.is_judged = race.best_us is not None
        for trial in race.trials:
            if not self.stop.is_set() and (nothing := nothing_fits(trial)) is not None:
                trial.take(nothing)
        if race.partitioning != Partitioning.GIVEN:
            self._repartition(until_s)
        if race.partitioning != Partitioning.SEARCHED:
            return
        is_alone = len(race.candidates) == 1
        if is_alone and not bounds.applies(race.candidates[0].problem):
            self._try(race.trials[0], _START_SHARE * self.options.time_limit_s)
        self._search_partitions()

    def _judge(
        self, those: Sequence[Trial], until_s: float, until_plain_s: float | None = None
    ) -> None:
        """Judge the published schedules on some candidates until a moment of the search.

        Args:
            until_plain_s: another moment for them as they were published, without R besides.
        """

        def is_late(ops: int, is_plain: bool) -> bool:
            if self.told_us is None and not self.num_judged and not self.stop.is_set():
                self.num_judged = 1  # the first schedule in any case
                return False
            spent_s = ops * _JUDGED_OP_S
            if self.options.deterministic:
                self.granted_s += ops / _JUDGED_OPS_PER_S
                spent_s = 0.0
            end_s = until_plain_s if is_plain and until_plain_s is not None else until_s
            return self.stop.is_set() or self._left_s(end_s) < spent_s

        judge(those, is_late, self._tell_of)

    def _repartition(self, until_s: float) -> None:
        """Cut candidates anew for the stages that recompute in the best published schedules."""
        race = self.race

        def is_late() -> bool:
            return self.stop.is_set() or self._left_s(until_s) <= 0

        for trial in list(repartitioned_trials(self.profile, race.trials, is_late)):
            self._judge([trial], until_s)
            if trial.found is not None and race.can_win(trial):
                trial.candidate = trial.candidate._replace(choice=None)
                trial.published = ()  # the placement's own are those where nothing recomputes
                race.trials.append(trial)
        race.trials += [one for trial in race.trials if (one := fixed(trial)) is not None]

    def _tell_of(self, trial: Trial) -> None:
        """Tell of what was found on a candidate without a search, if it is the best so far."""
        found = trial.found
        if found is None or found.schedule is None or found.value_us is None:
            return
        if self.told_us is not None and found.value_us >= self.told_us[0]:
            return
        assert found.timeline and found.peak_bytes and found.found_by
        tell = self._tell(trial, trial.problem)
        if tell is not None:
            tell(
                Incumbent(
                    0.0,
                    found.schedule,
                    timeline=found.timeline,
                    value_us=found.value_us,
                    lower_bound_us=found.lower_bound_us,
                    found_by=found.found_by,
                    peak_bytes=found.peak_bytes,
                )
            )

    def _search_partitions(self) -> None:
        """Try candidates on the partitions that look best, if there are several on the best."""
        race, until_s = self.race, self._moment_s(_PARTITIONS_SHARE)
        those = self._worth_partitioning()
        for place, candidate in enumerate(those):
            limit_s = self._left_s(until_s) / (len(those) - place)
            search = self._looked_for(candidate, limit_s)
            bounds = search.bounds_of_all() if candidate.choice == () else None
            race.queues[candidate.name] = PartitionQueue(search, bounds)
            known = race.partitions_of(candidate.name)
            best = search.best(_PARTITIONS if len(race.candidates) == 1 else _PARTITIONS_OF_EACH)
            found = (candidate.on(problem) for problem in best if problem.partition not in known)
            new = [race.new(one) for one in found]
            race.trials += new
            self._judge(new, until_s)

    def _worth_partitioning(self) -> Sequence[Candidate]:
        """The candidates on which something near the best was found, and the first one."""
        race = self.race
        if len(race.candidates) == 1:
            return race.candidates
        near = [trial.name for trial in race.near(_WORTH)][:_FEW]
        first, *others = race.candidates
        return [first, *(candidate for candidate in others if candidate.name in near)]

    def _looked_for(self, candidate: Candidate, limit_s: float) -> PartitionSearch:
        """Look for partitions, where nothing fits without with stages that recompute."""
        self.granted_s += limit_s
        late_s = time.monotonic() + limit_s
        options = replace(self.options, time_limit_s=_PROOFS_SHARE * limit_s)
        best, problem = self.race.best_of(candidate.name), candidate.problem
        stages: Sequence[int] = candidate.choice or ()
        order = None
        if best is not None and best.schedule is not None:
            order = without_recompute(best.schedule)
            if candidate.choice is None:
                stages, problem = recomputed(best.schedule), without_layers(best.problem)
        asked = (self.profile, problem, limit_s, partial(self._is_late, late_s))
        search = PartitionSearch(*asked, stages, options, order)
        if not search.run() and candidate.choice is None:
            search = PartitionSearch(*asked, range(problem.costs.num_stages), options)
            search.run()
        return search

    def _moment_s(self, share: float) -> float:
        """Return the moment at which a share of the remaining time will be over."""
        limit_s = self.options.time_limit_s
        return limit_s - (1 - share) * self._left_s(limit_s)

    def _is_late(self, at_s: float) -> bool:
        late = not self.options.deterministic and time.monotonic() > at_s
        return late or self.stop.is_set()

    def run(self) -> Chosen:
        self._begin()
        race, limit_s = self.race, self.options.time_limit_s
        if len(race.trials) > 1:
            self._round(self._worth_a_trial(), self._moment_s(_FIRST_SHARE))
        if len(near := race.near()[:_FEW]) > 1:
            self._round(near, self._moment_s(_SECOND_SHARE))
        if race.bounds_all_partitions:
            self._try_further()
        while self._has_time(limit_s):
            near, promising = race.near(), race.promising()
            if near and not race.is_of_others(near[0], promising):
                untried = [trial for trial in near if not trial.num_searches]
                waiting = len(untried) + race.others_can_win
                self._try((*untried, near[0])[0], self._left_s(limit_s) / (waiting + 1))
            elif not self._try_further() and not self._try_least(promising):
                self.is_over = self._has_time(limit_s)
                break
        if race.is_untried:
            self._try(race.trials[0], limit_s)  # with what little time there was
        wall_s = time.monotonic() - self.began
        return race.answer(wall_s, is_interrupted=self.stop.is_set(), is_over=self.is_over)

    def _worth_a_trial(self) -> Sequence[Trial]:
        """Return the trials of the first round: as many as there is time for, best first."""
        near = self.race.near(_WORTH, is_first_round=True)
        untried = [trial for trial in near if not trial.num_searches]
        limit_s = _FIRST_SHARE * self._left_s(self.options.time_limit_s)
        most = limit_s / (_TRIAL_S_PER_OP * num_ops(self.race.candidates[0].problem))
        return untried[: max(1, int(most))]

    def _has_time(self, until_s: float) -> bool:
        """Return True if enough time is left until a moment of the search for another trial."""
        least_s = _LEAST_SHARE * self.options.time_limit_s
        return not self.stop.is_set() and self._left_s(until_s) > least_s

    def _try_further(self) -> bool:
        """Try partitions that were not among the first and look good; whether there were any."""
        trials, until_s = self.race.trials, self._moment_s(_FURTHER_SHARE)
        began = len(trials)
        while self._has_time(until_s) and (further := self._next_further(until_s)):
            trials.append(further)
            self._try(further, self._left_s(until_s) / 2)
        return len(trials) > began

    def _next_further(self, until_s: float) -> Trial | None:
        """One more partition that can win; None: there is none, or none is found in time."""
        race = self.race
        for name, queue in race.queues.items():
            while self._has_time(until_s):
                left_s = self._left_s(until_s) / 2
                options = replace(self.options, time_limit_s=left_s)
                is_late = partial(self._is_late, time.monotonic() + left_s)
                problem, spent_s = queue.next(
                    race.partitions_of(name), race.best_us, options, is_late
                )
                self.granted_s += spent_s
                if problem is None:
                    break
                if one := race.admitted(name, problem):
                    return one
        return None

    def _try_least(self, promising: Sequence[Trial]) -> bool:
        """Try what bounds say least of, whatever it looks like; whether there is anything."""
        race, limit_s, least = self.race, self.options.time_limit_s, list(promising)
        for name, queue in race.queues.items():
            one = None
            while one is None and self._has_time(limit_s):
                problem, spent_s = queue.least(
                    race.partitions_of(name), race.best_us or 0, self.options.gap
                )
                if problem is None:
                    break
                self.granted_s += spent_s
                one = race.admitted(name, problem)
            least += [one] if one is not None else []
        if not least or not self._has_time(limit_s):
            return False
        one = min(least, key=lambda trial: trial.lower_bound_us)
        if one not in promising:
            race.trials.append(one)
        is_last = one in promising and len(least) == 1
        self._try(one, (1 if is_last else _FURTHER_SHARE) * self._left_s(limit_s))
        return True

    def _round(self, those: Sequence[Trial], until_s: float) -> None:
        for place, trial in enumerate(those):
            self._try(trial, self._left_s(until_s) / (len(those) - place))

    def _left_s(self, until_s: float) -> float:
        """Return the seconds left until a moment of the search, by the clock or as granted."""
        if self.options.deterministic:
            return until_s - self.granted_s
        return until_s - (time.monotonic() - self.began)

    def _try(self, trial: Trial, limit_s: float) -> None:
        """Search on one placement, from the best that is known there; on the first in any case."""
        is_late = self.stop.is_set() or limit_s <= 0
        if not self.race.is_untried and (is_late or not self.race.can_win(trial)):
            return
        self.granted_s += limit_s
        options = replace(self.options, time_limit_s=limit_s, hint=None)
        is_known = self.race.best_us is not None and limit_s < _LEAST_FOR_FAMILIES_S
        if trial.is_judged or is_known:
            options = replace(options, without=options.without | {Part.FAMILIES})
        start = trial.found or self.race.best_of(trial.name)
        if start is not None:
            options = options.going_on_from(start)
        chooses = trial.candidate.choice is None and trial.num_searches % 2 == 0
        stages = _stages_to_begin_with(trial) if chooses else None
        if stages is None:
            trial.take(self._solve(trial, options))
        else:
            trial.take(self._solve_with(trial, stages, options))

    def _solve(self, trial: Trial, options: SolveOptions) -> Result:
        return solve_repartitioning(
            self.profile if self.race.partitioning == Partitioning.EVEN else None,
            trial.candidate.problem,
            trial.candidate.choice,
            options,
            lambda problem: self._tell(trial, problem),
            self.stop,
        )

    def _solve_with(self, trial: Trial, stages: tuple[int, ...], options: SolveOptions) -> Result:
        """Search with some stages recomputing on the same partition; the bound is of any choice."""
        problem = trial.problem
        least_us = bound_us(problem, None)
        listener = self._tell(trial, problem)

        def tell(incumbent: Incumbent) -> None:
            if listener is not None:
                own_us = min(least_us, incumbent.value_us)
                told = replace(incumbent, lower_bound_us=own_us, certificate=_ANY_CHOICE)
                listener(told)

        found = solve_with(problem, stages, options, tell, self.stop)
        found = replace(found, certificate=_ANY_CHOICE)
        if found.value_us is None:
            is_out = why_infeasible(problem, None) is not None
            reason = StoppedBy.INFEASIBLE if is_out else StoppedBy.TIME_LIMIT
            return replace(found, lower_bound_us=least_us, stopped_by=reason)
        is_proven = found.value_us <= least_us
        reason = StoppedBy.OPTIMAL if is_proven else StoppedBy.TIME_LIMIT
        return replace(found, lower_bound_us=min(least_us, found.value_us), stopped_by=reason)

    def _tell(self, trial: Trial, problem: Problem) -> OnImprovement | None:
        """Tell of what is better than all before, or of a better bound that holds for all."""
        listener = self.listeners(problem)
        if listener is None:
            return None

        def tell(incumbent: Incumbent) -> None:
            known_us = trial.bound_on(problem)
            own_us = max(known_us, incumbent.lower_bound_us)
            own = (
                trial.certificate if known_us > incumbent.lower_bound_us else incumbent.certificate
            )
            bound_us = self.race.bound_us(incumbent.value_us, trial, own_us)
            news = (incumbent.value_us, -bound_us)
            if self.told_us is None or news < self.told_us:
                self.told_us = news
                listener(
                    replace(
                        incumbent,
                        elapsed_s=time.monotonic() - self.began,
                        lower_bound_us=bound_us,
                        bound_scope=self.race.bound_scope,
                        certificate=self.race.certificate(bound_us, trial, own),
                    )
                )

        return tell


def _decided(candidate: Candidate) -> Candidate:
    """A candidate whose stages need not be chosen: without a cap nothing is won by R."""
    if candidate.choice is None and candidate.problem.caps_bytes is None:
        return candidate._replace(choice=())
    return candidate


def _stages_to_begin_with(trial: Trial) -> tuple[int, ...] | None:
    """The stages that recompute in what was found; None: nothing was, so they are chosen."""
    if trial.found is None or trial.found.schedule is None:
        return None
    return tuple(recomputed(trial.found.schedule))
