"""The search under one memory limit: in one partition, over all partitions, or over weights.

A memory curve and the bisection for the least limit are made of such searches.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.memory_curve.cap_breakpoints import CapBreakpoints
from synth.plan.memory_curve.cap_knowledge import KnownSchedule
from synth.plan.partition.balance import smallest_limit_of_any
from synth.plan.partition.bounds import with_partition
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.recompute.choice import Choice, limits_bytes
from synth.plan.recompute.repartition import repartitioned
from synth.plan.search_space import OneCandidate, Placements, WeightPlaces
from synth.plan.weight_passing.candidates import WeightCandidates
from synth.profile import Profile
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent, Result

Watch = Callable[[Incumbent], None]


class CapSearch(Protocol):
    """Searches a problem under any memory limit, the same for all ranks."""

    @property
    def problem(self) -> Problem:
        """The problem to begin with, without memory limits."""

    @property
    def scope(self) -> BoundScope:
        """Scope of the bounds of results."""

    @property
    def proves_infeasible(self) -> bool:
        """True if a result that is infeasible proves that no schedule keeps the limit."""

    def limits_bytes(self) -> tuple[int, int]:
        """Return a limit that every schedule exceeds below, and one that some schedule keeps."""

    def breakpoints(self) -> CapBreakpoints | None:
        """Return limits at which bounds change; None: every limit may differ from the next one."""

    def holds(self, incumbent: Incumbent) -> bool:
        """Return True if the bound of an incumbent is one of all that is searched."""

    def problem_of(self, found: KnownSchedule) -> Problem:
        """Return the problem that a schedule solves, without memory limits."""

    def solve(
        self,
        cap_bytes: int | None,
        best: KnownSchedule | None,
        options: SolveOptions,
        watch: Watch | None,
        stop: threading.Event,
    ) -> Result:
        """Search under a limit.

        Args:
            cap_bytes: the memory limit of each rank; None: no limit.
            best: the best known schedule that keeps it.
            options: with the time limit of this search, and a hint for it if none is known.
            watch: called with every improvement.
            stop: set it to get the best so far.
        """


@dataclass(frozen=True)
class InOnePartition:
    """Keeps the partition; `recompute` are the stages that do, None: chosen under each limit."""

    problem: Problem
    recompute: Choice = ()

    @property
    def scope(self) -> BoundScope:
        """The partition."""
        return BoundScope.PARTITION

    @property
    def proves_infeasible(self) -> bool:
        """True: infeasibility is a closed form."""
        return True

    def limits_bytes(self) -> tuple[int, int]:
        """Return both limits in closed form."""
        return limits_bytes(self.problem, self.recompute)

    def breakpoints(self) -> CapBreakpoints | None:
        """Return the sums over ops; with R every limit may differ from its neighbours."""
        return CapBreakpoints(self.problem) if self.recompute == () else None

    def holds(self, incumbent: Incumbent) -> bool:
        """Return True."""
        return True

    def problem_of(self, found: KnownSchedule) -> Problem:
        """Return the problem."""
        return self.problem

    def solve(
        self,
        cap_bytes: int | None,
        best: KnownSchedule | None,
        options: SolveOptions,
        watch: Watch | None,
        stop: threading.Event,
    ) -> Result:
        """Search from the best known schedule, or else from the hint."""
        if best is not None:
            options = replace(options, hint=best.schedule)
        asked = Candidate("", capped(self.problem, cap_bytes), self.recompute)
        return OneCandidate(asked).search(options, lambda _: watch, stop).result


@dataclass(frozen=True)
class OverPartitions:
    """Searches the best partition under each limit, with one stage per rank."""

    problem: Problem
    profile: Profile

    @property
    def scope(self) -> BoundScope:
        """All partitions."""
        return BoundScope.ALL

    @property
    def proves_infeasible(self) -> bool:
        """False: a schedule that fits in none of the partitions tried may fit in another one."""
        return False

    def limits_bytes(self) -> tuple[int, int]:
        """Return the least limit of any partition, which a schedule keeps."""
        least = smallest_limit_of_any(self.profile, self.problem.num_ranks)
        return least, least

    def breakpoints(self) -> CapBreakpoints | None:
        """Return None: sums over ops are of one partition."""
        return None

    def holds(self, incumbent: Incumbent) -> bool:
        """Return True for bounds of all partitions, not of those tried so far."""
        return incumbent.bound_scope == BoundScope.ALL

    @cached_property
    def _table(self) -> StageCostTable:
        return StageCostTable(self.profile)

    def problem_of(self, found: KnownSchedule) -> Problem:
        """Return the problem in the partition of a schedule."""
        return self._in_partition_of(found, self.problem)

    def _in_partition_of(self, found: KnownSchedule, problem: Problem) -> Problem:
        if found.partition in (None, problem.partition):
            return problem
        return with_partition(self._table, problem, found.partition)

    def solve(
        self,
        cap_bytes: int | None,
        best: KnownSchedule | None,
        options: SolveOptions,
        watch: Watch | None,
        stop: threading.Event,
    ) -> Result:
        """Search from the partition of the best known schedule."""
        asked = capped(self.problem, cap_bytes)
        start = (
            repartitioned(self.profile, asked, ())
            if best is None
            else self._in_partition_of(best, asked)
        )
        space = Placements((Candidate("", start),), self.profile, Partitioning.SEARCHED)
        # In another partition a hint may not fit.
        return space.search(replace(options, hint=None), lambda _: watch, stop).result


@dataclass(frozen=True)
class OverWeights:
    """Searches all candidates of `--weights`, each in its own partition."""

    candidates: WeightCandidates
    profile: Profile

    @property
    def problem(self) -> Problem:
        """The problem of the first candidate."""
        return self.candidates.problem

    @property
    def scope(self) -> BoundScope:
        """The candidates, or the partition of the only one."""
        return BoundScope.PARTITION if self.candidates.is_one else BoundScope.CANDIDATES

    @property
    def proves_infeasible(self) -> bool:
        """True: a result is infeasible only if closed forms exclude every candidate."""
        return True

    def limits_bytes(self) -> tuple[int, int]:
        """Return a limit in closed form, and that of the least memory known."""
        return self.candidates.limits_bytes()

    def breakpoints(self) -> CapBreakpoints | None:
        """Return None: bounds count visits, which change at other limits."""
        return None

    def holds(self, incumbent: Incumbent) -> bool:
        """Return True if there are no other candidates."""
        return self.candidates.is_one

    def problem_of(self, found: KnownSchedule) -> Problem:
        """Return the problem of the candidate that a schedule solves."""
        return self.candidates.problem_of(found.schedule.placement, found.partition)

    def solve(
        self,
        cap_bytes: int | None,
        best: KnownSchedule | None,
        options: SolveOptions,
        watch: Watch | None,
        stop: threading.Event,
    ) -> Result:
        """Search all candidates, each from its published schedules."""
        within = self.candidates.within(capped(self.problem, cap_bytes).caps_bytes)
        space = WeightPlaces(
            within.weight_passing, within.staying, self.profile, Partitioning.GIVEN
        )
        return space.search(replace(options, hint=None), lambda _: watch, stop).result


def cap_search(
    problem: Problem,
    recompute: Choice,
    searched: Profile | None = None,
    candidates: tuple[WeightCandidates, Profile] | None = None,
) -> CapSearch:
    """Return the search that options ask for.

    Args:
        problem: without memory limits.
        recompute: the stages that recompute; None: chosen under each limit.
        searched: the profile of the problem's costs, if the partition is searched under each limit.
        candidates: the candidates of `--weights`, with the profile of their costs; the others do
            not matter then.
    """
    if candidates is not None:
        return OverWeights(*candidates)
    return (
        InOnePartition(problem, recompute)
        if searched is None
        else OverPartitions(problem, searched)
    )


def capped(problem: Problem, cap_bytes: int | None) -> Problem:
    """Return the problem with the same memory limit on each rank; None: without a limit."""
    caps = None if cap_bytes is None else (cap_bytes,) * problem.num_ranks
    return replace(problem, caps_bytes=caps)
