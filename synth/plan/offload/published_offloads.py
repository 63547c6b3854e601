"""Published schedules that offload, on all placements, as they are and on their best cuts.

A schedule as it is takes some hundredths of a second, so all are judged before any search. Then the
best cuts of each are searched as in a comparison, the fastest schedules first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import family_of, generate, names_on
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.offload.lower_bound import offload_bound_us
from synth.plan.published.family_searches import FamilySearches
from synth.plan.published.order_scores import Judge
from synth.plan.search_space import OneCandidate, Placements
from synth.plan.tuning import JUDGING, OFFLOAD
from synth.search.clock import Clock
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.problem import Problem

OnFound = Callable[[Problem, EvaluatedSchedule], None]


class PublishedOffload(NamedTuple):
    """A family's schedule on a candidate, in its partition.

    `excess_bytes` is the most by which a rank exceeds its limit.
    """

    name: str
    candidate: Candidate
    excess_bytes: int
    value_us: int


class PublishedOffloads:
    """Judges the schedules of families that offload.

    Args:
        candidates: the placements, those of the space among them.
        clock: of the search, which is told of the effort.
        on_found: takes each schedule that fits.
    """

    def __init__(
        self,
        space: OneCandidate | Placements,
        candidates: Sequence[Candidate],
        clock: Clock,
        on_found: OnFound,
    ) -> None:
        self.space, self.candidates, self.clock = space, candidates, clock
        self.on_found = on_found
        self.judged: list[PublishedOffload] = []
        self.best_us: int | None = None

    def judge(self, until_s: float) -> None:
        """Judge all of them in the partitions of the candidates, small ones first.

        Placements whose lower bound is above the best value are left out.

        Args:
            until_s: the moment of the search at which it ends, unless few ops were judged.
        """
        num_ops = 0
        for candidate in sorted(self.candidates, key=lambda one: one.problem.num_ops):
            names = [
                name for name in names_on(candidate.problem.placement) if family_of(name).offloads
            ]
            if not names or self._cannot_win(candidate.problem):
                continue
            for name in names:
                num_ops += candidate.problem.num_ops
                is_late = self.clock.left_s(until_s) <= 0 and num_ops > OFFLOAD.first_ops
                if self.clock.stop.is_set() or is_late:
                    return
                self._judge(name, candidate)

    def _cannot_win(self, problem: Problem) -> bool:
        return self.best_us is not None and offload_bound_us(problem) >= self.best_us

    def _judge(self, name: str, candidate: Candidate) -> None:
        problem = candidate.problem
        self._charge(JUDGING.late_timed_cost * problem.num_ops)
        try:
            schedule = generate(
                name,
                problem.num_ranks,
                problem.num_micro_batches,
                costs=problem.costs,
                caps_bytes=problem.caps_bytes,
                where=problem.placement,
                objective=problem.objective,
            )
        except SynthError:
            return  # its definition does not admit the numbers
        found = evaluate(replace(problem, caps_bytes=None), schedule, name)
        if found is None or not problem.admits(schedule):
            return
        excess = Judge(problem.objective, problem.caps_bytes).excess_bytes(found.peak_bytes)
        self.judged.append(PublishedOffload(name, candidate, excess, found.value_us))
        if not excess:
            self._take(problem, found)

    def search_cuts(self, until_s: float, until_one_s: float) -> None:
        """Search for the best cuts until a moment of the search, a few in any case.

        The fastest schedules that fit come first, then those that are the least too large. The cut
        of a single candidate may be given.

        Args:
            until_one_s: the moment as long as none fits.
        """
        space, problem = self.space, self.space.problem
        profile, partitioning = space.profile, Partitioning.EVEN
        if isinstance(space, Placements):
            partitioning = space.partitioning
        if profile is None or partitioning == Partitioning.GIVEN:
            return

        def is_late() -> bool:
            end_s = until_one_s if self.best_us is None else until_s
            return self.clock.stop.is_set() or self.clock.left_s(end_s) <= 0

        searches = FamilySearches(
            profile,
            problem.num_micro_batches,
            Judge(problem.objective, problem.caps_bytes),
            is_late,
            is_free=partitioning == Partitioning.SEARCHED,
            goes_on=lambda ops: ops <= JUDGING.first_ops and not self.clock.stop.is_set(),
        )
        for one in self._by_value():
            if is_late() and not searches.goes_on(searches.num_ops):
                return
            self._search_cut(one, searches)

    def _by_value(self) -> Iterator[PublishedOffload]:
        """Yield the schedules as they are by excess and value, but for those far above the best."""
        for one in sorted(self.judged, key=lambda one: (one.excess_bytes, one.value_us)):
            if self.best_us is None or one.value_us <= OFFLOAD.near_factor * self.best_us:
                yield one

    def _search_cut(self, one: PublishedOffload, searches: FamilySearches) -> None:
        problem = one.candidate.problem
        try:
            search = searches.of(one.name, problem.placement)
        except SynthError:
            return  # its definition admits none of the cuts
        found = search.plain()
        made = len(search.made) * (JUDGING.late_timed_cost if family_of(one.name).timed else 1)
        self._charge((search.order.num_scored + made) * problem.num_ops)
        schedule = found.lowered.schedule
        if not found.score.fits or not problem.admits(schedule):
            return
        sizes = found.variant.sizes
        assert self.space.profile is not None
        costs = partition_costs(self.space.profile, sizes, problem.placement.ranks)
        self._take(problem.on_partition(costs, sizes), found.evaluated(one.name))

    def _take(self, problem: Problem, found: EvaluatedSchedule) -> None:
        if self.best_us is None or found.value_us < self.best_us:
            self.best_us = found.value_us
        self.on_found(problem, found)

    def _charge(self, ops: int) -> None:
        self.clock.grant(ops / OFFLOAD.ops_per_s)
