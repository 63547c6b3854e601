"""A search over the places of weights: candidates share the time, and the best gets most of it.

Each candidate with weight passing gets an equal part of the first share of the time. With `auto`
data parallelism and the published schedules whose weights move are judged beside them, and then
pipelines are searched. The time that is left goes
to the candidates that can still win by their bounds and are near the best: half of it to all of
them, and so on, which is successive halving (Jamieson and Talwalkar, AISTATS 2016).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from synth.plan.choose.announcer import Announcer
from synth.plan.choose.candidates import Candidate, Partitioning, Ranking, SearchWatch, Trial
from synth.plan.choose.race import solve_best_of
from synth.plan.choose.race_state import RaceState
from synth.plan.choose.ranking import final_ranking
from synth.plan.recompute.choice import bound_us
from synth.plan.tuning import MOVING_FAMILIES
from synth.plan.weight_passing.choice import WeightCandidate, WeightSearch
from synth.plan.weight_passing.data_parallel import data_parallel_trial
from synth.plan.weight_passing.moving_families import MovingFamilies
from synth.profile import Profile
from synth.search.outcome import relative_gap
from synth.solver.options import SolveOptions
from synth.solver.result import Incumbent
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.watch import SolveWatch


class WeightsRace:
    """A race between places of weights."""

    def __init__(
        self,
        weight_passing: Sequence[WeightCandidate],
        staying: Sequence[Candidate],
        copies: Candidate | None,
        options: SolveOptions,
        watch: SearchWatch,
    ) -> None:
        """Begin all searches; none has had any time yet.

        Args:
            staying: placements whose weights stay with their stages.
            copies: data parallelism, if it is one of the candidates.
            watch: told of improvements over all candidates.
        """
        self.options, self.stop = options, watch.stop
        moving = [Candidate(one.name, one.problem) for one in weight_passing]
        self.clock = options.clock(watch.stop)
        self.race = RaceState([*moving, *staying], Partitioning.GIVEN, options.gap)
        self.announcer = Announcer(self.race, self.clock, watch)
        self.searches: list[tuple[Trial, WeightSearch]] = []
        for one, candidate in zip(weight_passing, moving, strict=True):
            trial = Trial(candidate, 0, least_bytes=one.needed_bytes)
            listener = self.announcer.listener(trial)
            search = one.begin(options, SolveWatch(listener, watch.stop))
            trial.lower_bound_us = search.state.bound_us
            self.race.trials.append(trial)
            self.searches.append((trial, search))
        self.staying = [Trial(one, bound_us(one.problem, one.choice)) for one in staying]
        alone = [] if copies is None else [data_parallel_trial(copies, options)]
        self.race.trials += [*alone, *self.staying]
        self.announcer.tell_trials()
        for trial in alone:
            self.announcer.announce_judged(trial)

    def run(
        self, profile: Profile, partitioning: Partitioning, *, has_families: bool = False
    ) -> Ranking:
        """Share the time, and rank what was found, with a bound that holds for all candidates.

        Args:
            partitioning: the partitioning of the model where weights stay, and of published
                schedules whose weights move.
            has_families: these schedules are candidates.
        """
        families = self._families(profile, partitioning) if has_families else None
        first_s = WEIGHT_PASSING.trial_share * self.options.time_limit_s
        for (trial, search), seconds in self.clock.shared(self.searches, first_s):
            self._search(trial, search, seconds)
        if families is not None:
            share = MOVING_FAMILIES.share_of_left(is_alone=self._is_family_best)
            self._judge(families, self.clock.moment_s(share))
        if self.staying:
            self._search_staying(profile, partitioning)
        while chances := list(self._chances()):
            half_s, least_s = self.clock.moment_s(0.5), WEIGHT_PASSING.shortest_part_s
            for (trial, search), seconds in self.clock.shared(chances, half_s):
                self._search(trial, search, min(max(least_s, seconds), self.clock.left_s()))
        if families is not None and self._is_family_best:
            self._judge(families, self.options.time_limit_s)
        return final_ranking(
            self.race,
            self.clock.elapsed_s,
            is_interrupted=self.stop.is_set(),
            is_exhausted=self.clock.left_s() > 0,
        )

    def _families(self, profile: Profile, partitioning: Partitioning) -> MovingFamilies:
        first = self.staying[0].candidate
        return MovingFamilies(
            first.problem,
            profile,
            self.clock,
            is_free=partitioning == Partitioning.SEARCHED,
            has_layers=first.choice is None,
        )

    @property
    def _is_family_best(self) -> bool:
        """True if no search has found a better schedule than the published ones, or none fits."""
        best = self.race.incumbent
        return best is None or best.is_fixed

    def _judge(self, families: MovingFamilies, until_s: float) -> None:
        """Add the trials of published schedules whose weights move."""
        for trial in families.judge(until_s, lambda: self.race.best_us is None):
            if trial not in self.race.trials:
                self.race.trials.append(trial)
            self.announcer.announce_judged(trial)
            self.announcer.tell_trials()

    def _search(self, trial: Trial, search: WeightSearch, seconds: float) -> None:
        self.clock.grant(seconds)
        began_s = self.clock.elapsed_s
        found = search.run(seconds)
        trial.seconds += self.clock.elapsed_s - began_s
        trial.found, trial.lower_bound_us = found, found.lower_bound_us
        trial.certificate, trial.published = found.certificate, found.baselines
        trial.is_over = search.is_over or trial.is_impossible
        self.announcer.tell_trials()

    def _chances(self) -> Iterator[tuple[Trial, WeightSearch]]:
        """Yield the searches to continue: near the best, and able to win; none without time."""
        if self.clock.is_over():
            return
        near = self.race.near(WEIGHT_PASSING.near, is_first_round=True)
        yield from (one for one in self.searches if one[0] in near)

    def _search_staying(self, profile: Profile, partitioning: Partitioning) -> None:
        """Search the pipelines, for the most of the remaining time if they can win."""
        race, best_us = self.race, self.race.best_us
        least_us = min(trial.lower_bound_us for trial in self.staying)
        # The bounds are of the even partitions; others have the same work, but unequal stages.
        can_win = best_us is None or relative_gap(best_us, least_us) > self.options.gap
        share = WEIGHT_PASSING.staying_share if can_win else WEIGHT_PASSING.unlikely_share
        seconds = share * self.clock.left_s()
        self.clock.grant(seconds)
        options = replace(self.options, time_limit_s=seconds)
        candidates = [trial.candidate for trial in self.staying]
        others = [trial for trial in race.trials if trial not in self.staying]

        def take(trials: Sequence[Trial]) -> None:
            race.trials = [*others, *trials]
            self.announcer.tell_trials()

        watch = SearchWatch(self._tell_of_staying, self.stop, take)
        chosen = solve_best_of(candidates, profile, partitioning, options, watch)
        take(chosen.trials)

    def _tell_of_staying(self, incumbent: Incumbent) -> None:
        """Announce an improvement of the pipelines."""
        where = incumbent.problem.placement
        held = (trial for trial in self.staying if trial.problem.placement == where)
        self.announcer.announce(incumbent, next(held), of_others=True)
