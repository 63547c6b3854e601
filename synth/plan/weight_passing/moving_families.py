"""The published schedules whose weights move, each on its best partition.

No search varies RoundPipe, Mobius, TawPipe and what else the families define with a way of weights.
So each is a candidate that is one schedule, as `synth compare` shows it, with its further numbers
of rounds and of stages for which weights come in advance.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product, zip_longest

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import Family, families, family_placement, is_pipeline, variants_for
from synth.families._lib.options import ROUNDS, defaults, spelled
from synth.plan.choose.candidates import Candidate, Trial
from synth.plan.choose.judging import result_without_schedule
from synth.plan.choose.published_cuts import baseline_of
from synth.plan.published.best_variant import BestVariant, PublishedVariant
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.recompute.layer_choice import with_layers
from synth.plan.tuning import JUDGING, MOVING_FAMILIES
from synth.profile import Profile
from synth.search.clock import Clock
from synth.search.outcome import StoppedBy, rank_key
from synth.solver.problem import Problem
from synth.units import format_bytes_both


def moving_families(num_ranks: int, num_layers: int) -> tuple[str, ...]:
    """Return the names of the schedules; last those that a search over orders begins with."""
    those = {name for name, family in families().items() if family.weights is not None}
    shown = [
        name for name in variants_for(num_ranks, num_layers) if name.partition(":")[0] in those
    ]
    alone = [families()[name] for name in sorted(those) if not _is_searched(families()[name])]
    further = [name for family in alone for name in _further(family, num_ranks, num_layers)]
    known = {family.name for family in alone}
    first = [name for name in shown if name.partition(":")[0] in known]
    return tuple(dict.fromkeys([*first, *further, *shown]))


def _is_searched(family: Family) -> bool:
    """True if a search over rings or all-gathers varies the family."""
    return not is_pipeline(family.name) and "nodes" not in {one.name for one in family.options}


def _further(family: Family, num_ranks: int, num_layers: int) -> Iterator[str]:
    """Yield a family's name with other numbers of rounds, of nodes, and of stages in advance."""
    tried = {
        ROUNDS: [n for n in MOVING_FAMILIES.rounds if n * num_ranks <= num_layers],
        "ahead": MOVING_FAMILIES.aheads,
        "nodes": [n for n in range(2, num_ranks + 1) if num_ranks % n == 0],
    }
    known = {option.name for option in family.options}
    numbers = {name: values for name, values in tried.items() if name in known}
    for chosen in product(*numbers.values()):
        more = dict(zip(numbers, chosen, strict=True))
        yield spelled(family.name, family.options, defaults(family.options) | more)


class MovingFamilies:
    """The search for their best partitions, and the trials that result."""

    def __init__(
        self, problem: Problem, profile: Profile, clock: Clock, *, is_free: bool, has_layers: bool
    ) -> None:
        """Search for nothing yet.

        Args:
            problem: one on the same ranks; its placement and partition do not matter.
            is_free: any partition; else the balanced one, and equal numbers of layers.
            has_layers: layers may be recomputed, for schedules that do not fit without.
        """
        self.problem, self.clock, self._has_layers = problem, clock, has_layers
        self._profile, self._until_s, self._simulated_ops = profile, 0.0, 0
        self._needs_one: Callable[[], bool] = lambda: False
        self._searches = FamilySearches(
            profile,
            problem.num_micro_batches,
            Judge(problem.objective, problem.caps_bytes),
            lambda: self._is_late,
            is_free=is_free,
            goes_on=self._goes_on,
        )
        self._waiting = list(moving_families(problem.num_ranks, len(profile.layers)))
        self._open: list[tuple[Trial, BestVariant]] = []  # they may have better partitions

    @property
    def _is_late(self) -> bool:
        return not self.clock.has_time(self._until_s)

    def _goes_on(self, _: int) -> bool:
        """Charge a schedule; True while nothing fits and few ops were simulated."""
        num_ops = self.problem.num_ops
        self._simulated_ops += num_ops
        self.clock.grant(num_ops / JUDGING.ops_per_s)
        is_due = self._needs_one() and self._simulated_ops <= MOVING_FAMILIES.first_ops
        return is_due and not self.clock.stop.is_set()

    def judge(self, until_s: float, needs_one: Callable[[], bool]) -> Iterator[Trial]:
        """Yield a trial for each schedule that is defined, and each trial again that improves.

        All schedules are judged on one partition first. Then better partitions and recomputed
        layers are searched, for the best one of each family, then for the second best, and so on.

        Args:
            until_s: the moment of the search at which this ends; the next time it goes on.
            needs_one: True if no schedule is known that fits: then all are judged on one partition
                at least, however late it is.
        """
        self._until_s, self._needs_one = until_s, needs_one
        while self._waiting and not self.clock.stop.is_set():
            if self._is_late and not needs_one():
                return
            if (trial := self._begin(self._waiting.pop(0))) is not None:
                yield trial
        for place in self._in_turns():
            if self._is_late:
                return
            trial, search = place
            is_better = self._take(trial, search.plain(), search)
            if self._has_layers and self.problem.caps_bytes is not None:
                recomputing = search.with_layers(search.plain())
                if recomputing is not None:
                    is_better = self._take(trial, recomputing, search) or is_better
            if not self._is_late:
                self._open.remove(place)
            if is_better:
                yield trial

    def _in_turns(self) -> list[tuple[Trial, BestVariant]]:
        """Return the schedules that may have better partitions, the best of each family first."""
        of_family = defaultdict(list)
        for place in sorted(self._open, key=lambda place: rank_key(place[0].value_us)):
            of_family[place[0].name.partition(":")[0]].append(place)
        turns = zip_longest(*of_family.values())
        return [place for turn in turns for place in turn if place is not None]

    def _begin(self, name: str) -> Trial | None:
        """Return the trial of a schedule; None if it is not defined on these numbers."""
        try:
            where = family_placement(name, self.problem.num_ranks)
            search = self._searches.of(name, where)
        except SynthError:
            return None
        found = next(iter(search.made.values()))
        trial = Trial(Candidate(name, self._on(search, found)), 0, is_over=True, is_fixed=True)
        self._take(trial, found, search)
        self._open.append((trial, search))
        return trial

    def _take(self, trial: Trial, found: PublishedVariant, search: BestVariant) -> bool:
        """Take a variant of a schedule; return True if it is better than the one before."""
        peaks, score = found.peaks_bytes, found.score
        scored = [max(peaks), *(one.peak_bytes for one in search.scores.values() if one)]
        trial.least_bytes = min(trial.least_bytes or max(scored), *scored)
        if not found.recomputed_layers:
            trial.published = (baseline_of(trial.name, found),)
        if not score.fits:
            if trial.value_us is None:
                message = _what_it_needs(trial.least_bytes)
                trial.found = result_without_schedule(trial, StoppedBy.INFEASIBLE, message)
            return False
        if trial.value_us is not None and trial.value_us <= score.value_us:
            return False
        line, objective = found.timeline, self.problem.objective
        # No schedule with the same ops on the same ranks is faster.
        trial.lower_bound_us = min(score.value_us, objective.iterations * max(line.work_us))
        return trial.offer(self._on(search, found), found.evaluated(trial.name))

    def _on(self, search: BestVariant, found: PublishedVariant) -> Problem:
        sizes = found.variant.sizes
        problem = replace(
            self.problem,
            costs=partition_costs(self._profile, sizes),
            placement=search.family.where,
            partition=sizes,
            partition_is_best=False,
        )
        return with_layers(problem, found.recomputed_layers) if found.recomputed_layers else problem


def _what_it_needs(least_bytes: int) -> str:
    return (
        f"the published schedule needs {format_bytes_both(least_bytes)} "
        f"(§mem_limit {least_bytes}B) on the best partition known; allow that much"
    )
