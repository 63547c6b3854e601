"""The lower bound of an answer that may offload: over which problems, and by which proof."""

from dataclasses import replace
from typing import NamedTuple

from synth.objective import BoundScope
from synth.op_kinds import OpKind
from synth.plan.choose.candidates import Ranking
from synth.plan.offload.lower_bound import offload_bound_us
from synth.plan.recompute.layer_choice import without_layers
from synth.plan.search_space import OneCandidate, Placements
from synth.schedule.files.certificate import CLOSED_FORMS, Certificate
from synth.schedule.model import Schedule
from synth.solver.problem import Problem


class ScopedBound(NamedTuple):
    """A bound, the problems for which it holds, and its certificate."""

    bound_us: int
    scope: BoundScope
    certificate: Certificate | None = CLOSED_FORMS


class AnswerBound:
    """The bounds known so far, of schedules with offloads to the host or without.

    A search without memory limits proves bounds that hold with offloads; closed forms count memory,
    too, where nothing recomputes by choice.

    Args:
        has_finer: schedules with offloads are on further placements, too, so that no bound of this
            space holds for all.
    """

    def __init__(self, space: OneCandidate | Placements, *, has_finer: bool = False) -> None:
        self.space, self._has_finer = space, has_finer
        self._is_one = isinstance(space, OneCandidate)
        self._problems: dict[tuple[object, ...], Problem] = {}
        self._unlimited: dict[tuple[object, ...], ScopedBound] = {}
        self._all: ScopedBound | None = None
        for candidate in space.all_candidates:
            self.add(candidate.problem)

    def note(self, ranking: Ranking) -> None:
        """Count the problems of a search among those for which the bound holds."""
        for problem in (ranking.result.problem, *(one.problem for one in ranking.trials)):
            self.add(problem)

    def note_unlimited(self, ranking: Ranking) -> None:
        """Take the bounds of a search without memory limits."""
        self.note(ranking)
        result = ranking.result
        own = ScopedBound(result.lower_bound_us, result.bound_scope, result.certificate)
        holds_for_all = result.bound_scope == BoundScope.ALL
        if holds_for_all and not self._has_finer:
            self._all = own
        elif holds_for_all or not ranking.trials:
            self._unlimited[problem_key(result.problem)] = own
        for one in ranking.trials:
            bound = ScopedBound(one.lower_bound_us, BoundScope.CANDIDATES, one.certificate)
            self._unlimited[problem_key(one.problem)] = bound

    def of(self, problem: Problem, schedule: Schedule | None) -> ScopedBound:
        """Return the bound of an answer, which holds for all with which it was compared.

        Memory does not count where the answer moves activations to other ranks.
        """
        if self._all is not None:
            return self._all
        counts_memory = schedule is None or not has_guests(schedule)
        if self._is_one:
            return self._own(problem, counts_memory=counts_memory)
        least = min(
            (self._own(one, counts_memory=counts_memory) for one in self._problems.values()),
            key=lambda bound: bound.bound_us,
        )
        return least._replace(scope=BoundScope.CANDIDATES)

    def own_us(self, problem: Problem) -> int:
        """Return the bound of one problem."""
        return self._own(problem, counts_memory=True).bound_us

    def _own(self, problem: Problem, *, counts_memory: bool) -> ScopedBound:
        closed = ScopedBound(self._closed_us(problem, counts_memory), BoundScope.PARTITION)
        proven = self._unlimited.get(problem_key(problem), closed)
        return max(closed, proven, key=lambda bound: bound.bound_us)

    def _closed_us(self, problem: Problem, counts_memory: bool) -> int:
        candidates = self.space.all_candidates
        if counts_memory and all(candidate.choice == () for candidate in candidates):
            caps = candidates[0].problem.caps_bytes
            return offload_bound_us(replace(problem, caps_bytes=caps))
        return offload_bound_us(replace(without_layers(problem), caps_bytes=None))

    def add(self, problem: Problem) -> None:
        """Count a problem among those for which the bound holds."""
        self._problems.setdefault(problem_key(problem), problem)


def has_guests(schedule: Schedule) -> bool:
    """Return True if activations move to other ranks."""
    return any(op.kind == OpKind.HOST_FOR for program in schedule.programs for op in program)


def problem_key(problem: Problem) -> tuple[object, ...]:
    """Return the placement and the partition of a problem."""
    return problem.placement, problem.partition
