"""Trials on other partitions: those that local search finds, then those that bounds leave open."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from synth.plan.choose.candidates import Candidate, Trial
from synth.plan.choose.cut_trials import CutsOf
from synth.plan.choose.race_state import RaceState
from synth.plan.partition import bounds
from synth.plan.partition.partition_search import PartitionSearch
from synth.plan.partition.queue import PartitionQueue
from synth.plan.recompute.layer_choice import without_layers
from synth.plan.tuning import PARTITION_TRIALS, RACE
from synth.profile import Profile
from synth.schedule.recomputed_stages import recomputed, without_recompute
from synth.search.clock import Clock
from synth.solver.options import SolveOptions


class PartitionTrials:
    """Makes new trials of a race by searching for partitions."""

    def __init__(
        self,
        profile: Profile,
        options: SolveOptions,
        race: RaceState,
        clock: Clock,
        cuts: CutsOf,
    ) -> None:
        """Make no trial yet.

        Args:
            clock: of the race.
            cuts: returns those to begin with where there are no bounds over all partitions.
        """
        self.cuts = cuts
        self.profile, self.options, self.race, self.clock = profile, options, race, clock

    def share_of_left(self, candidates: Sequence[Candidate]) -> float:
        """Return the share of the remaining time for `first`."""
        if all(bounds.applies(candidate.problem) for candidate in candidates):
            return RACE.bounded_partitions_share_of_left
        return RACE.partitions_share_of_left

    def first(self, candidates: Sequence[Candidate], until_s: float) -> Iterator[list[Trial]]:
        """Yield new trials on the partitions that look best, placement by placement.

        Args:
            until_s: the moment of the race at which all searches are to end.
        """
        for place, candidate in enumerate(candidates):
            limit_s = self.clock.left_s(until_s) / (len(candidates) - place)
            search = self._searched(candidate, limit_s)
            bounds = search.bounds_of_all() if candidate.choice == () else None
            self.race.queues[candidate.name] = PartitionQueue(search, bounds)
            yield self._best_of(candidate, search)

    def _best_of(self, candidate: Candidate, search: PartitionSearch) -> list[Trial]:
        known = self.race.partitions_of(candidate.name)
        is_alone = len(self.race.candidates) == 1
        best = search.best(
            PARTITION_TRIALS.partitions_of_one if is_alone else PARTITION_TRIALS.partitions_of_each
        )
        new = (candidate.on(problem) for problem in best if problem.partition not in known)
        return [self.race.new(one) for one in new]

    def worth_partitioning(self) -> Sequence[Candidate]:
        """Return the first candidate, and those on which a value near the best was found."""
        race = self.race
        if len(race.candidates) == 1:
            return race.candidates
        near = [trial.name for trial in race.near(RACE.trial_factor)][: RACE.few]
        first, *others = race.candidates
        return [first, *(candidate for candidate in others if candidate.name in near)]

    def _searched(self, candidate: Candidate, limit_s: float) -> PartitionSearch:
        """Search for partitions; if nothing fits and the stages may be chosen, with all of R."""
        self.clock.grant(limit_s)
        should_stop = self.clock.deadline(limit_s)
        options = replace(self.options, time_limit_s=PARTITION_TRIALS.proofs_share * limit_s)
        best, problem = self.race.best_of(candidate.name), candidate.problem
        stages: Sequence[int] = candidate.choice or ()
        order = None
        if best is not None and best.schedule is not None:
            order = without_recompute(best.schedule)
            if candidate.choice is None:
                stages, problem = recomputed(best.schedule), without_layers(best.problem)
        others = () if bounds.applies(problem) else self.cuts(problem.placement)
        search = PartitionSearch(
            self.profile, problem, limit_s, should_stop, stages, options, order, others
        )
        if not search.run() and candidate.choice is None:
            every = range(problem.costs.num_stages)
            search = PartitionSearch(self.profile, problem, limit_s, should_stop, every, options)
            search.run()
        return search

    def next(self, until_s: float) -> Trial | None:
        """Return a trial on one more partition that can win; None if none is found in time."""
        for name, queue in self.race.queues.items():
            while self.clock.has_time(until_s):
                left_s = self.clock.left_s(until_s) / 2
                options = replace(self.options, time_limit_s=left_s)
                problem, spent_s = queue.next(
                    self.race.partitions_of(name),
                    self.race.best_us,
                    options,
                    self.clock.deadline(left_s),
                )
                self.clock.grant(spent_s)
                if problem is None:
                    break
                if trial := self.race.admitted(name, problem):
                    return trial
        return None

    def raise_bounds(self, until_s: float) -> None:
        """Raise the bounds over all partitions, placement by placement, until a moment."""
        queues = self.race.queues
        for place, (name, queue) in enumerate(queues.items()):
            limit_s = self.clock.left_s(until_s) / (len(queues) - place)
            best_us = self.race.best_us
            if best_us is None or limit_s <= 0:
                return
            options = replace(self.options, time_limit_s=limit_s)
            tried = self.race.bounds_of(name)
            spent_s = queue.raise_bound(tried, best_us, options, self.clock.deadline(limit_s))
            self.clock.grant(spent_s)

    def least(self, until_s: float) -> Iterator[Trial]:
        """Yield for each placement a trial on the untried partition with the least bound."""
        race = self.race
        for name, queue in race.queues.items():
            while self.clock.has_time(until_s):
                problem, spent_s = queue.least(
                    race.partitions_of(name), race.best_us or 0, self.options.gap
                )
                if problem is None:
                    break
                self.clock.grant(spent_s)
                if trial := race.admitted(name, problem):
                    yield trial
                    break
