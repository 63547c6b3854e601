"""Comparing published schedules on one profile, each on its own placement, with the solver's.

The model is partitioned for each placement as by `synth solve`, so schedules are compared as they
would be run, with their peak, static memory and traffic.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import (
    current_name,
    family_of,
    family_placement,
    overlapping,
    variants_for,
    vocabulary_barriers,
)
from synth.option_names import named
from synth.plan.choose.candidates import SearchWatch
from synth.plan.compared_spaces import ComparedSpaces
from synth.plan.comparison import PLANNED, WITH_R, Comparison, Question, Refusal, SearchRequest
from synth.plan.comparison_entries import entry_of, solved_entry
from synth.plan.planners.planned import Planner, planned
from synth.plan.published.best_variant import PublishedVariant
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge, Score
from synth.plan.recompute.layers_in_place import stages_in_place
from synth.plan.tuning import BEST_VARIANT, JUDGING
from synth.schedule.lowering.lower import Lowered
from synth.schedule.model import Placement
from synth.schedule.recomputed_stages import recomputed
from synth.schedule.simulate import Timeline
from synth.schedule.verify import verify
from synth.search.best_so_far import BestSoFar
from synth.solver.options import SolveOptions
from synth.solver.result import Incumbent
from synth.solver.tuning import SEARCH

# Takes the title of a search, and an improvement of its schedule or bound.
OnFound = Callable[[str, Incumbent], None]


def compare(
    question: Question,
    names: Sequence[str] | None = None,
    searches: Sequence[SearchRequest] = (),
    options: SolveOptions | None = None,
    on_begin: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
    so_far: Comparison | None = None,
    on_found: OnFound | None = None,
    *,
    planners: Sequence[Planner] = (),
) -> Comparison:
    """Simulate published schedules, and let the solver search on placements. Repeated names count
    once.

    Args:
        question: profile, sizes, limits and objective.
        names: the names of families, with their options; None: all families with all options, those
            with rounds also with a number that divides the layers evenly. F and BW run at once in
            further ones if the profile has the time of that.
        searches: the solver's searches.
        options: the time limit is for each search, and for all published schedules together;
            schedules that do not finish in time are refused.
        on_begin: called with the name of each schedule before it is made, or searched.
        stop: set it to end the comparison with the results so far.
        so_far: an empty comparison to fill, which other threads may read meanwhile.
        on_found: called with the title of a search and each improvement of its schedule or bound.
        planners: published ones, whose choices become rows.

    Raises:
        SynthError: an unknown family, a partition of other layers or for no placement, or too many
            micro-batches.
    """
    running = _Comparing(
        so_far or Comparison(question),
        options or SolveOptions(),
        stop or threading.Event(),
        on_found,
    )
    if names is None:
        names = variants_for(question.num_ranks, len(question.profile.layers))
        if question.profile.has_pairs:
            names = [*names, *overlapping(names)]
    _check_size(question)
    names = tuple(dict.fromkeys(map(current_name, names)))
    searches = tuple(dict.fromkeys(searches))
    # Unknown names are errors, not refusals, so all are looked up first.
    placements = {name: family_placement(name, question.num_ranks) for name in names}
    # The stages of a divided vocabulary are not the layers' that a partition gives.
    of_layers = [where for name, where in placements.items() if not vocabulary_barriers(name)]
    searched = [search.placement for search in searches if search.placement is not None]
    _check_partition(question, [*of_layers, *searched])
    for name in names:
        if running.begins(name, on_begin):
            running.add_published(name)
    for planner in dict.fromkeys(planners):
        if running.begins(f"{PLANNED}{planner}", on_begin):
            running.add_planned(planner)
    for search in searches:
        if running.begins(search.title, on_begin):
            running.add_solved(search)
    return running.comparison


def _check_size(question: Question) -> None:
    most = SEARCH.most_ops // (3 * question.num_ranks)
    if question.num_micro_batches > most:
        raise SynthError(
            f"{question.num_micro_batches} micro-batches on {question.num_ranks} ranks make more "
            f"than {SEARCH.most_ops:,} ops, which take minutes to simulate; give at most {most:,} "
            f"micro-batches"
        )


def _check_partition(question: Question, placements: list[Placement]) -> None:
    sizes = question.partition
    if sizes is None:
        return
    partition_costs(question.profile.replace(rank_speeds=None), sizes)
    known = sorted({where.num_stages for where in placements})
    if known and len(sizes) not in known:
        raise SynthError(
            f"the partition has {len(sizes)} stages, the placements asked for have "
            f"{', '.join(map(str, known))}; give one for one of them, or none"
        )


class _Comparing:
    """A comparison in progress."""

    def __init__(
        self,
        comparison: Comparison,
        options: SolveOptions,
        stop: threading.Event,
        on_found: OnFound | None,
    ) -> None:
        self.question, self.options, self.stop = comparison.question, options, stop
        self._on_found = on_found
        self.comparison = comparison
        self.clock, self.longest_s, self.num_ops = options.clock(stop), 0.0, 0
        self._ended_early = False  # the search of the schedule that is simulated
        asked = self.question
        self._spaces = ComparedSpaces(asked, self._is_late)
        self.published = FamilySearches(
            asked.profile,
            asked.num_micro_batches,
            Judge(asked.objective, asked.caps_bytes),
            self._ends_search,
            given=asked.partition,
            is_free=asked.partition_is_sought,
            menu=asked.allowed.layer_menu,
            # Variants of few ops together are judged in any case, as `_is_due` has it for rows.
            goes_on=lambda num_ops: num_ops <= JUDGING.first_ops and not self.stop.is_set(),
        )

    def begins(self, name: str, on_begin: Callable[[str], None] | None) -> bool:
        """Return False if the comparison was stopped; otherwise announce the schedule."""
        if on_begin is not None and not self.stop.is_set():
            on_begin(name)
        return not self.stop.is_set()

    def add_published(self, name: str) -> None:
        """Add a family's schedule or its refusal."""
        began_s = self.clock.elapsed_s
        if not self._is_due(name) and self._is_late(self.longest_s):
            reason = (
                f"not simulated: the time limit of {self.options.time_limit_s:g} s for all "
                "published schedules is over; allow more §time_limit"
            )
            self.comparison.refusals.append(Refusal(name, named(reason)))
            return
        self._ended_early = False
        self._simulate(name)
        if self._ended_early:
            self.comparison.ended_early.append(name)
        self.longest_s = max(self.longest_s, self.clock.elapsed_s - began_s)

    def _ends_search(self) -> bool:
        """Return True if the search for a published schedule's best variant has to end.

        Where the time limit ends it, that is noted.
        """
        if is_late := self._is_late(share=BEST_VARIANT.share_of_limit):
            self._ended_early = True
        return is_late or self.stop.is_set()

    def _is_late(self, more_s: float = 0.0, share: float = 1.0) -> bool:
        """Return True if a share of the published schedules' time will be over in some seconds.

        Never in a deterministic comparison; the partitions tried for a schedule are bounded anyway.
        """
        until_s = share * self.options.time_limit_s
        return not self.clock.is_deterministic and self.clock.left_s(until_s) < more_s

    def _is_due(self, name: str) -> bool:
        """Return True if a schedule is simulated whether it is late or not.

        The first one is, and all as long as they have few ops together: no load of the machine
        leaves out their rows.
        """
        ops = 3 * self.question.num_ranks * self.question.num_micro_batches
        ops *= JUDGING.late_timed_cost if family_of(name).timed else 1
        is_due = self.num_ops + ops <= JUDGING.first_ops or not self.num_ops
        self.num_ops += ops
        return is_due

    def _simulate(self, name: str) -> None:
        where = family_placement(name, self.question.num_ranks)
        try:
            tried = [self.published.of(name, each) for each in self.question.orders(where)]
            pairs = [(search.plain(), search) for search in tried]
        except SynthError as error:
            self.comparison.refusals.append(Refusal(name, str(error)))
            return
        plain, search = min(pairs, key=lambda pair: pair[0].score)
        self._add_variant(name, plain, search.faster_above_limit(plain))
        if self.question.published_recompute and self.question.caps_bytes is not None:
            found = search.with_layers(plain)
            if found is not None:
                self._add_variant(f"{name}{WITH_R}", found)

    def _add_variant(
        self,
        name: str,
        found: PublishedVariant,
        above_limit: tuple[tuple[int, ...], Score] | None = None,
    ) -> None:
        rule, sizes = found.variant.rule, found.variant.sizes
        rebuilt = recomputed(found.lowered.schedule)
        if refused := stages_in_place(self.question.profile, sizes, rebuilt):
            stage, why = next(iter(refused.items()))
            reason = f"it rebuilds stage {stage}, whose {why}"
            self.comparison.refusals.append(Refusal(name, reason))
            return
        self._add(
            name,
            sizes,
            (found.lowered, found.timeline),
            recomputed_layers=found.recomputed_layers,
            recomputation="" if rule is None else rule.words,
            above_limit=above_limit,
        )

    def add_planned(self, planner: Planner) -> None:
        """Add the choice of a published planner, or the reason why there is none."""
        asked = self.question
        try:
            sizes, costs, schedule, prediction = planned(
                planner, asked.profile, asked.num_ranks, asked.num_micro_batches, asked.caps_bytes
            )
        except SynthError as error:
            self.comparison.refusals.append(Refusal(f"{PLANNED}{planner}", str(error)))
        else:
            name = f"{PLANNED}{schedule.name}"
            self._add(name, sizes, verify(schedule, costs), prediction=prediction)

    def add_solved(self, search: SearchRequest) -> None:
        """Add the solver's schedule on a placement, or the reason why there is none."""
        name = search.title
        try:
            on_found = None if self._on_found is None else partial(self._on_found, name)
            so_far = self.comparison.searching[name] = BestSoFar(on_found)
            result = (
                self._spaces.of(search).search(self.options, SearchWatch(so_far, self.stop)).result
            )
        except SynthError as error:
            self.comparison.searching.pop(name, None)
            self.comparison.refusals.append(Refusal(name, str(error)))
            return
        del self.comparison.searching[name]
        if result.schedule is None:
            reason = named(result.message or "nothing was found")
            self.comparison.refusals.append(Refusal(name, reason))
            return
        self.comparison.entries.append(solved_entry(self.question, name, result, self.options))

    def _add(
        self, name: str, sizes: tuple[int, ...], simulated: tuple[Lowered, Timeline], **more: Any
    ) -> None:
        """Add a row; `more` are further fields of `Entry`."""
        entry = entry_of(self.question, name, sizes, simulated)
        self.comparison.entries.append(replace(entry, **more))
