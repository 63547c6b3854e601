"""The search spaces of a comparison: problems on the question's costs."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from synth.errors import SynthError
from synth.plan.choose.candidates import Candidate, Partitioning, placements_to_try
from synth.plan.comparison import Question, SearchRequest
from synth.plan.offload.offload_space import finer_placements, may_offload, with_offloads_if_asked
from synth.plan.partition.unequal_ranks import name_in_order
from synth.plan.problem_arguments import Partition, ProblemArguments
from synth.plan.recompute.choice import Choice
from synth.plan.recompute.layers_in_place import check_stages
from synth.plan.search_space import (
    OneCandidate,
    Placements,
    SearchSpace,
    WeightPlaces,
    WithoutFlush,
)
from synth.plan.weight_passing.choice import (
    WeightPassingCandidate,
    even_stages,
    weight_passing_candidates,
)
from synth.schedule.model import Placement
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.problem import Problem
from synth.solver.weight_passing.problem import WeightMovement


class ComparedSpaces:
    """The search spaces of a comparison; they share one problem for each placement."""

    def __init__(self, question: Question, should_stop: Callable[[], bool]) -> None:
        """Begin without problems.

        Args:
            question: profile, sizes and limits.
            should_stop: ends the search for a balanced partition.
        """
        self._question, self._should_stop = question, should_stop
        self._arguments = ProblemArguments(
            question.profile,
            question.num_micro_batches,
            "even",
            question.objective,
            question.caps_bytes,
            chooses_layers=question.chooses_layers,
            allowed=question.allowed,
        )
        self._problems: dict[Placement, Problem] = {}

    def of(self, search: SearchRequest) -> SearchSpace:
        """Return what a search chooses from.

        Raises:
            SynthError: these numbers of ranks, layers and micro-batches do not admit it, or a stage
                to be recomputed begins with a layer that works in place.
        """
        asked = self._question
        if search.movement is not None:
            moving = self._weight_passing(search.movement)
            return WeightPlaces(moving, (), asked.profile, asked.partitioning)
        if search.never_flushes:
            problem = self._problem(Placement.linear(asked.num_ranks))
            return WithoutFlush(search.name, FlushFreeProblem.parse(search.name, problem))
        if asked.profile.rank_speeds is not None:
            sought = asked.partition_is_sought
            partitioning = Partitioning.SEARCHED if sought else Partitioning.GIVEN
            return Placements(tuple(self._candidates(search)), asked.profile, partitioning)
        is_free = asked.allowed.orders_freely
        if search.placement is not None and not asked.partition_is_sought and is_free:
            problem = self._problem(search.placement)
            check_stages(problem, search.recompute, asked.profile)
            one = Candidate(search.name, problem, search.recompute)
            alone = OneCandidate(one, asked.profile if asked.partition is None else None)
            return with_offloads_if_asked(alone, asked.allowed)
        candidates = tuple(self._candidates(search))
        several = Placements(candidates, asked.profile, asked.partitioning)
        is_of_all = search.placement is None and may_offload(several.problem, asked.allowed)
        finer = self._finer() if is_of_all else ()
        return with_offloads_if_asked(several, asked.allowed, finer)

    def _weight_passing(self, movement: WeightMovement) -> tuple[WeightPassingCandidate, ...]:
        asked = self._question
        found, refusals = weight_passing_candidates(
            (movement,),
            None,
            asked.num_ranks,
            len(asked.profile.layers),
            lambda where: self._problem_in(
                self._given(where) or even_stages(asked.profile, where.num_stages), where
            ),
        )
        if not found:
            raise SynthError(next(iter(refusals.values())))
        return found

    def _candidates(self, search: SearchRequest) -> list[Candidate]:
        """Return the placement of a search as candidate, or all possible ones.

        Raises:
            SynthError: none is possible.
        """
        asked, choice = self._question, search.recompute
        if search.placement is not None:
            return [*self._candidates_on(search.name, search.placement, choice)]
        found: list[Candidate] = []
        reasons: list[str] = []
        every = placements_to_try(asked.num_ranks, len(asked.profile.layers))
        for name, where in every.items():
            if not asked.allowed.is_default_on(where):
                continue
            if asked.partition is None or len(asked.partition) == where.num_stages:
                try:
                    found += self._candidates_on(name, where, choice)
                except SynthError as error:
                    reasons.append(str(error))
        if not found:
            raise SynthError((*reasons, "no placement has as many stages as the partition")[0])
        return found

    def _finer(self) -> tuple[Candidate, ...]:
        """Return the candidates on which only schedules with offloads are searched."""
        asked, found = self._question, []
        finer = finer_placements(asked.num_ranks, len(asked.profile.layers))
        for name, where in finer.items():
            if asked.partition is None or len(asked.partition) == where.num_stages:
                with suppress(SynthError):
                    found.append(Candidate(name, self._problem(where)))
        return tuple(found)

    def _candidates_on(self, name: str, where: Placement, choice: Choice) -> Iterator[Candidate]:
        """Yield the candidates on a placement: one, or with unequal ranks each of their orders.

        Raises:
            SynthError: it is not possible.
        """
        asked = self._question
        order = asked.allowed.order_on(where, asked.num_micro_batches)
        for each in asked.orders(where):
            problem = self._problem(each)
            check_stages(problem, choice, asked.profile)
            yield Candidate(name_in_order(name, where, each), problem, choice, order)

    def _problem(self, where: Placement) -> Problem:
        """Return the problem on a placement: in the given partition if it is for as many stages."""
        if (why := self._question.allowed.why_not_on(where)) is not None:
            raise SynthError(why)
        if where not in self._problems:
            self._problems[where] = self._problem_in(self._given(where) or "even", where)
        return self._problems[where]

    def _given(self, where: Placement) -> tuple[int, ...] | None:
        """Return the given partition, unless it is for another number of stages."""
        sizes = self._question.partition
        return sizes if sizes is not None and len(sizes) == where.num_stages else None

    def _problem_in(self, partition: Partition, where: Placement) -> Problem:
        return replace(self._arguments, partition=partition).on(where, self._should_stop)
