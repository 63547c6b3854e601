"""Trials on the best partitions of published schedules, each found under its own order.

A schedule likes other stages than the balanced ones (see `plan.published`), so each is searched for
its partition and, where layers may be chosen, its recomputed layers. If partitions are even, these
are the balanced one and those of equal numbers of layers. The search among partitions then starts
from these, and is never above them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import names_on
from synth.plan.choose.candidates import Candidate, Partitioning, Trial
from synth.plan.choose.judging import judged_result
from synth.plan.choose.standings import Standings
from synth.plan.published.best_variant import PublishedVariant
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.recompute.layer_choice import applies, with_layers
from synth.profile import Profile
from synth.search.outcome import rank_key
from synth.solver.evaluate.evaluate import EvaluatedSchedule, split_backward
from synth.solver.result import Baseline


class PublishedCuts:
    """Makes trials on the best partitions of published schedules."""

    def __init__(
        self,
        profile: Profile,
        race: Standings,
        should_stop: Callable[[], bool],
        charge: Callable[[int], None],
    ) -> None:
        """Search for nothing yet.

        Args:
            profile: of the model.
            race: the standings.
            should_stop: ends the search.
            charge: told of the ops that were simulated.
        """
        self.profile, self.race = profile, race
        self.should_stop, self.charge = should_stop, charge
        problem = race.candidates[0].problem
        judge = Judge(problem.objective, problem.caps_bytes)
        self.searches = FamilySearches(
            profile,
            problem.num_micro_batches,
            judge,
            should_stop,
            is_free=race.partitioning == Partitioning.SEARCHED,
            menu=problem.layer_menu,
        )

    def trials(self, judged: Sequence[Trial]) -> Iterator[Trial]:
        """Yield trials that have a published schedule as result, the best one of their partition.

        Families are searched in the order of their values so far, over all placements. The rows of
        the table are replaced by those on the best partitions.

        Args:
            judged: trials whose published schedules were judged, one for each placement.
        """
        known = [(trial, {one.name: one for one in trial.published}) for trial in judged]
        asked = [
            (rank_key(_value_us(trial, baselines.get(name))), name, place)
            for place, (trial, baselines) in enumerate(known)
            if trial.candidate.choice in ((), None)
            for name in names_on(trial.candidate.problem.placement)
        ]
        for _, name, place in sorted(asked):
            if self.should_stop():
                return
            trial, baselines = known[place]
            for found in self._searched(name, trial.candidate):
                if not found.recomputed_layers:
                    baselines[name] = baseline_of(name, found)
                    trial.published = tuple(baselines.values())
                if (new := self._trial(trial.candidate, name, found)) and self._is_better(new):
                    yield new

    def _is_better(self, new: Trial) -> bool:
        """Return True if no trial on the partition has as good a value."""
        return all(
            rank_key(new.value_us) < rank_key(one.value_us)
            for one in self.race.trials
            if (one.name, one.problem.partition) == (new.name, new.problem.partition)
        )

    def _searched(self, name: str, candidate: Candidate) -> Iterator[PublishedVariant]:
        """Yield a family's schedule on its best partition, then with its best layers."""
        problem = candidate.problem
        try:
            search = self.searches.of(name, problem.placement)
            plain = search.plain()
        except SynthError:
            return  # its definition does not admit the numbers
        yield plain
        if candidate.choice is None and problem.caps_bytes is not None and applies(problem):
            found = search.with_layers(plain)
            if found is not None:
                yield found
        self.charge(search.order.num_scored * problem.num_ops)

    def _trial(self, candidate: Candidate, name: str, found: PublishedVariant) -> Trial | None:
        """Return the trial that has this schedule as result; None if no search can start there."""
        schedule = found.lowered.schedule
        if not found.score.fits or not schedule.keeps_saved:
            return None
        sizes = found.variant.sizes
        costs = partition_costs(self.profile, sizes)
        problem = replace(candidate.problem, costs=costs, partition=sizes, partition_is_best=False)
        trial = self.race.new(candidate.on(problem))
        if found.recomputed_layers:
            problem = with_layers(problem, found.recomputed_layers)
        alone = EvaluatedSchedule(
            schedule, found.timeline, found.score.value_us, found.peaks_bytes, name
        )
        apart = split_backward(problem, alone)
        best = min((one for one in (alone, apart) if one is not None), key=lambda one: one.value_us)
        trial.found = judged_result(problem, best, trial.lower_bound_us)
        return trial


def _value_us(trial: Trial, baseline: Baseline | None) -> int | None:
    return None if baseline is None else trial.problem.objective.value_us(baseline)


def baseline_of(name: str, found: PublishedVariant) -> Baseline:
    """Return the row of a schedule on its best partition."""
    line = found.timeline
    return Baseline(
        name,
        line.makespan_us,
        period_us=line.period_us,
        work_us=max(line.work_us),
        peak_bytes=found.peaks_bytes,
        fits=found.score.fits,
        keeps_saved=found.lowered.schedule.keeps_saved,
        mean_work_us=line.mean_work_us,
        offloads=found.lowered.schedule.offloads,
        partition=found.variant.sizes,
    )
