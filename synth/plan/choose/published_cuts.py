"""Trials on the best partitions of published schedules, each found under its own order.

A schedule likes other stages than the balanced ones (see `plan.published`), so each is searched for
its partition and, where layers may be chosen, its recomputed layers. If partitions are even, these
are the balanced one and those of equal numbers of layers. The search among partitions then starts
from these, and is never above them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import family_of, names_on
from synth.objective import Objective
from synth.plan.choose.candidates import Candidate, Partitioning, Trial
from synth.plan.choose.race_state import RaceState
from synth.plan.published.best_variant import BestVariant, PublishedVariant
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.published.variants import Sizes
from synth.plan.recompute.layer_choice import applies, with_layers
from synth.plan.tuning import JUDGING
from synth.profile import Profile
from synth.schedule.model import Placement
from synth.search.outcome import rank_key, relative_gap
from synth.solver.evaluate.evaluate import split_backward
from synth.solver.result import Baseline

# Yields trials, given those that were judged, what ends the search, and what counts its ops.
PublishedTrials = Callable[
    [Sequence[Trial], Callable[[], bool], Callable[[int], None]], Iterator[Trial]
]


class PublishedCuts:
    """Makes trials on the best partitions of published schedules."""

    def __init__(self, profile: Profile, race: RaceState) -> None:
        """Search for nothing yet."""
        self.profile, self.race = profile, race
        problem = race.candidates[0].problem
        self.searches = FamilySearches(
            profile,
            problem.num_micro_batches,
            Judge(problem.objective, problem.caps_bytes),
            is_free=race.partitioning == Partitioning.SEARCHED,
            menu=problem.layer_menu,
        )
        self._begun: dict[tuple[str, Placement], BestVariant] = {}
        self._bounds_us: dict[tuple[str, Sizes], int] = {}

    def on_candidates(
        self,
        judged: Sequence[Trial],
        should_stop: Callable[[], bool],
        charge: Callable[[int], None],
    ) -> Iterator[Trial]:
        """Yield trials that have a published schedule as result, the best one of their partition.

        All families are tried on the candidate partitions, each in one order. Then those that read
        times are made for each candidate partition by itself, unless a bound shows that they are
        no better there than the best schedule known. So no published schedule on a candidate
        partition is better than the result, if there was time.
        """
        return self._trials((_Step.CANDIDATES, _Step.MADE_ANEW), judged, should_stop, charge)

    def searched(
        self,
        judged: Sequence[Trial],
        should_stop: Callable[[], bool],
        charge: Callable[[int], None],
    ) -> Iterator[Trial]:
        """Yield the same kind of trials after a search from the candidates.

        If any partition will do, layers move to other stages, and if layers may be chosen, some are
        recomputed.
        """
        return self._trials((_Step.SEARCHED,), judged, should_stop, charge)

    def _trials(
        self,
        steps: Sequence["_Step"],
        judged: Sequence[Trial],
        should_stop: Callable[[], bool],
        charge: Callable[[int], None],
    ) -> Iterator[Trial]:
        """Yield the trials of some steps.

        Families come in the order of their values so far, over all placements. The rows of the
        table are replaced by those on the best partitions.

        Args:
            steps: in their order.
            judged: trials whose published schedules were judged, one for each placement.
            should_stop: ends the search.
            charge: told of the ops that were simulated.
        """
        self.searches.should_stop = should_stop
        known = [_Rows(trial, {one.name: one for one in trial.published}) for trial in judged]
        pairs = [
            (rows, name)
            for rows in known
            if rows.trial.candidate.choice in ((), None)
            for name in names_on(rows.trial.candidate.problem.placement)
        ]
        for step in steps:
            for rows, name in sorted(pairs, key=lambda pair: pair[0].rank(pair[1])):
                if should_stop():
                    return
                candidate = rows.trial.candidate
                if step == _Step.MADE_ANEW and not family_of(name).timed:
                    continue  # its order is the same on all partitions
                for found in self._searched(name, candidate, charge, step):
                    rows.take(name, found)
                    if (new := self._trial(candidate, name, found)) and self._is_better(new):
                        yield new

    def _is_better(self, new: Trial) -> bool:
        """Return True if no trial on the partition has as good a value."""
        return all(
            rank_key(new.value_us) < rank_key(one.value_us)
            for one in self.race.trials
            if (one.name, one.problem.partition) == (new.name, new.problem.partition)
        )

    def _searched(
        self, name: str, candidate: Candidate, charge: Callable[[int], None], step: "_Step"
    ) -> Iterator[PublishedVariant]:
        """Yield a family's schedule on its best partition, then with its best layers.

        Args:
            candidate: its placement.
            charge: told of the ops that were simulated.
            step: which partitions are tried.
        """
        problem, key = candidate.problem, (name, candidate.problem.placement)
        try:
            search = self._begun.get(key) or self.searches.of(name, problem.placement)
        except SynthError:
            return  # its definition does not admit the numbers
        self._begun[key] = search
        scored, made = search.order.num_scored, len(search.made)
        if step == _Step.CANDIDATES:
            plain = search.on_candidates()
        elif step == _Step.MADE_ANEW:
            plain = self._made_anew(search, candidate)
        else:
            plain = search.plain()
        yield plain
        if (
            step == _Step.SEARCHED
            and candidate.choice is None
            and problem.caps_bytes is not None
            and applies(problem)
        ):
            found = search.with_layers(plain)
            if found is not None:
                yield found
        scored = max(0, search.order.num_scored - scored)
        made = (len(search.made) - made) * (JUDGING.late_timed_cost if family_of(name).timed else 1)
        charge((scored + made) * problem.num_ops)

    def _made_anew(self, search: BestVariant, candidate: Candidate) -> PublishedVariant:
        """Return a family's best schedule of those made for each candidate partition by itself."""
        race, gap = self.race, self.race.gap

        def can_win(sizes: Sizes) -> bool:
            best_us = race.best_us
            if best_us is None:
                return True
            self.searches.below_us = best_us if problem.objective == Objective.MAKESPAN else None
            return relative_gap(best_us, self._bound_us(candidate, sizes)) > gap

        problem = candidate.problem
        try:
            return search.anew_on_candidates(can_win)
        finally:
            self.searches.below_us = None

    def _bound_us(self, candidate: Candidate, sizes: Sizes) -> int:
        """Return the closed-form bound of a placement on a partition."""
        key = candidate.name, sizes
        if key not in self._bounds_us:
            costs = self.searches.costs.on(candidate.problem.placement).of(sizes)
            problem = replace(candidate.problem, costs=costs, partition=sizes)
            new = self.race.new(candidate.on(problem), is_quick=True)
            self._bounds_us[key] = new.lower_bound_us
        return self._bounds_us[key]

    def _trial(self, candidate: Candidate, name: str, found: PublishedVariant) -> Trial | None:
        """Return the trial that has this schedule as result; None if no search can start there."""
        schedule = found.lowered.schedule
        if not found.score.fits or not schedule.keeps_saved:
            return None
        sizes = found.variant.sizes
        where = candidate.problem.placement
        costs = partition_costs(self.profile, sizes, where.ranks)
        problem = candidate.problem.on_partition(costs, sizes)
        trial = self.race.new(candidate.on(problem))
        if found.recomputed_layers:
            problem = with_layers(problem, found.recomputed_layers)
        whole = found.evaluated(name)
        trial.offer(problem, whole)
        if (apart := split_backward(problem, whole)) is not None:
            trial.offer(problem, apart)
        return trial


class _Step(Enum):
    """The partitions on which a family is tried, and how it gets its order there."""

    CANDIDATES = auto()  # the candidates, most of them in the order made for another one
    MADE_ANEW = auto()  # the candidates, each in an order of its own
    SEARCHED = auto()  # their neighbours too; layers may be recomputed


@dataclass
class _Rows:
    """The rows of the table of a placement, by the family's name."""

    trial: Trial
    of_names: dict[str, Baseline]

    def rank(self, name: str) -> tuple[tuple[bool, int], bool, str]:
        """Sort key: families that fit first, by their value; then those made in less time."""
        row = self.of_names.get(name)
        fits = row is not None and row.fits is not False
        value_us = self.trial.problem.objective.value_us(row) if row and fits else None
        return rank_key(value_us), family_of(name).timed, name

    def take(self, name: str, found: PublishedVariant) -> None:
        """Take the better schedule of a family, without recomputed layers."""
        if found.recomputed_layers:
            return
        self.of_names[name] = baseline_of(name, found)
        self.trial.published = tuple(self.of_names.values())


def baseline_of(name: str, found: PublishedVariant) -> Baseline:
    """Return the row of a schedule on its best partition."""
    row = Baseline.of(
        name,
        found.timeline,
        found.peaks_bytes,
        fits=found.score.fits,
        keeps_saved=found.lowered.schedule.keeps_saved,
    )
    return replace(row, partition=found.variant.sizes)
