"""Search spaces: one candidate, placements, places of weights, or orders that never flush.

Commands, the Python API, comparisons and memory curves make a space and search it, and need not
tell the kinds apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from synth.errors import SynthError
from synth.objective import BoundScope
from synth.plan.choose.candidates import Candidate, Partitioning, Ranking, SearchWatch
from synth.plan.choose.race import solve_best_of
from synth.plan.partition import bounds
from synth.plan.partition.balance import smallest_limit_of_any
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.recompute.choice import limits_bytes
from synth.plan.recompute.repartition import repartitioned, solve_repartitioning
from synth.plan.weight_passing.choice import WeightCandidate
from synth.plan.weight_passing.data_parallel import DATA_PARALLEL, data_parallel
from synth.plan.weight_passing.weights_race import WeightsRace
from synth.profile import Profile
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.flush_free.search import solve_flush_free
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem

Partition = tuple[int, ...]


class SearchSpace(ABC):
    """The candidates of a search, all of one objective."""

    @property
    @abstractmethod
    def all_candidates(self) -> Sequence[Candidate | WeightCandidate]:
        """The candidates, each with a name and its problem; at least one."""

    @abstractmethod
    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Find the best schedule, with a bound that holds for all candidates.

        Args:
            options: the time limit is for all candidates together.
            watch: the listeners and the stop.
        """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the candidates."""
        return tuple(one.name for one in self.all_candidates)

    @property
    def problem(self) -> Problem:
        """The problem of the first candidate."""
        return self.all_candidates[0].problem

    def name_of(self, problem: Problem) -> str:
        """Return the name of the candidate that has a problem, or else its placement.

        A published schedule may have a placement of its own.
        """
        where = problem.placement
        same = (one.name for one in self.all_candidates if one.problem is problem)
        placed = (one.name for one in self.all_candidates if one.problem.placement == where)
        return next(same, None) or next(placed, "a published placement")


class LimitedSpace(SearchSpace):
    """A space that can be searched under any memory limit, the same for all ranks.

    A memory curve and the bisection for the least limit are made of such searches.
    """

    @property
    @abstractmethod
    def bound_scope(self) -> BoundScope:
        """Scope of the bounds of results."""

    @abstractmethod
    def within(self, cap_bytes: int | None, begin: Partition | None = None) -> Self:
        """Return the space under a memory limit.

        Args:
            cap_bytes: the limit of each rank; None: no limit.
            begin: the partition of the best known schedule within the limit, from which a search
                for partitions begins.
        """

    @abstractmethod
    def limits_bytes(self) -> tuple[int, int]:
        """Return a limit that every schedule exceeds below, and one that some schedule keeps.

        Raises:
            SynthError: no schedule is known; or bounds under one limit would not hold under
                another.
        """


@dataclass(frozen=True)
class OneCandidate(LimitedSpace):
    """One placement on its partition, or also on one that counts R's time.

    Attributes:
        candidate: the placement with its problem.
        profile: the profile of the costs; None: the partition is kept.
    """

    candidate: Candidate
    profile: Profile | None = None

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The candidate."""
        return (self.candidate,)

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Search from the hint of the options, if there is one."""
        _, problem, choice, _ = self.candidate
        found = solve_repartitioning(self.profile, problem, choice, options, watch.of_one)
        return Ranking(found, ())

    @property
    def bound_scope(self) -> BoundScope:
        """The partition."""
        return BoundScope.PARTITION

    def within(self, cap_bytes: int | None, begin: Partition | None = None) -> "OneCandidate":
        """Return the candidate under a limit, on its partition."""
        return OneCandidate(self.candidate.on(_capped(self.problem, cap_bytes)))

    def limits_bytes(self) -> tuple[int, int]:
        """Return both limits in closed form."""
        return limits_bytes(self.problem, self.candidate.choice)


@dataclass(frozen=True)
class Placements(LimitedSpace):
    """Placements whose weights stay with their stages; see `solve_best_of`.

    The memory limit can vary if the partition of one placement is searched.
    """

    candidates: tuple[Candidate, ...]
    profile: Profile
    partitioning: Partitioning

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The placements."""
        return self.candidates

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Judge the published schedules, then give the best candidates timed trials."""
        return solve_best_of(self.candidates, self.profile, self.partitioning, options, watch)

    @property
    def bound_scope(self) -> BoundScope:
        """All partitions."""
        return BoundScope.ALL

    def within(self, cap_bytes: int | None, begin: Partition | None = None) -> "Placements":
        """Return the placement under a limit, on the given partition or on a balanced one."""
        capped = _capped(self.problem, cap_bytes)
        if begin is None:
            capped = repartitioned(self.profile, capped, ())
        elif begin != capped.partition:
            capped = bounds.with_partition(self._table, capped, begin)
        return replace(self, candidates=(self.candidates[0].on(capped),))

    @cached_property
    def _table(self) -> StageCostTable:
        return StageCostTable(self.profile)

    def limits_bytes(self) -> tuple[int, int]:
        """Return the least limit of any partition, which a schedule keeps.

        Raises:
            SynthError: several placements, several stages per rank, stages that recompute, or too
                many layers: there are no bounds over all partitions.
        """
        problem, choice = self.problem, self.candidates[0].choice
        is_plain = bounds.is_linear(problem) and len(self.candidates) == 1 and choice == ()
        if is_plain and not bounds.applies(problem):
            raise SynthError(
                f"{len(self.profile.layers)} layers on {problem.num_ranks} ranks have too many "
                f"partitions for bounds over all of them; give §partition even, or layers per "
                f"stage"
            )
        if not is_plain:
            raise SynthError(
                "bounds over all partitions exist only for one stage per rank (§placement linear) "
                "and without §recompute; give §partition even, or layers per stage"
            )
        least = smallest_limit_of_any(self.profile, problem.num_ranks)
        return least, least


@dataclass(frozen=True)
class WeightPlaces(LimitedSpace):
    """Problems whose weights are passed on or gathered, and placements whose weights stay.

    Attributes:
        moving: the problems whose weights move.
        staying: the placements whose weights stay; one at least if none move.
        partitioning: way in which the model is partitioned where weights stay.
        has_families: published schedules whose weights move are candidates, where others stay.
    """

    moving: tuple[WeightCandidate, ...]
    staying: tuple[Candidate, ...]
    profile: Profile
    partitioning: Partitioning = Partitioning.GIVEN
    has_families: bool = False

    @cached_property
    def copies(self) -> Candidate | None:
        """Data parallelism, which is one of the candidates where weights may stay."""
        if not self.staying or not self.moving:
            return None
        return Candidate(DATA_PARALLEL, replace(self.moving[0].problem))

    @property
    def all_candidates(self) -> Sequence[Candidate | WeightCandidate]:
        """All candidates."""
        return (*self.moving, *self.staying, *([] if self.copies is None else [self.copies]))

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Give each candidate a part of the time, and the best ones the rest."""
        race = WeightsRace(self.moving, self.staying, self.copies, options, watch)
        return race.run(self.profile, self.partitioning, has_families=self.has_families)

    @property
    def bound_scope(self) -> BoundScope:
        """The candidates, or the partition of the only one."""
        is_one = len(self.moving) == 1 and not self.staying
        return BoundScope.PARTITION if is_one else BoundScope.CANDIDATES

    def within(self, cap_bytes: int | None, begin: Partition | None = None) -> "WeightPlaces":
        """Return all candidates under a limit, each on its own partition."""
        moving = tuple(one.on(_capped(one.problem, cap_bytes)) for one in self.moving)
        staying = tuple(one.on(_capped(one.problem, cap_bytes)) for one in self.staying)
        return replace(self, moving=moving, staying=staying)

    def limits_bytes(self) -> tuple[int, int]:
        """Return a limit in closed form, and that of the least memory known.

        Raises:
            SynthError: no schedule is known.
        """
        pairs = [one.limits_bytes() for one in self.moving]
        pairs += [limits_bytes(one.problem, one.choice) for one in self.staying]
        copies = None if self.copies is None else data_parallel(self.copies.problem)
        pairs += [] if copies is None else [(max(copies.peak_bytes),) * 2]
        kept = [least for _, least in pairs if least is not None]
        if not kept:
            raise SynthError(
                f"no schedule of {', '.join(self.names)} can run; take other ranks or micro-batches"
            )
        return min(never for never, _ in pairs), min(kept)


@dataclass(frozen=True)
class WithoutFlush(SearchSpace):
    """Orders of one placement that never flush the pipeline."""

    name: str
    flush_free: FlushFreeProblem

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The placement."""
        return (Candidate(self.name, self.flush_free.problem),)

    def search(self, options: SolveOptions, watch: SearchWatch) -> Ranking:
        """Minimize the time of a micro-batch while the pipeline is full."""
        return Ranking(solve_flush_free(self.flush_free, options, watch.of_one), ())


def _capped(problem: Problem, cap_bytes: int | None) -> Problem:
    """Return the problem with the same memory limit on each rank; None: without a limit."""
    caps = None if cap_bytes is None else (cap_bytes,) * problem.num_ranks
    return replace(problem, caps_bytes=caps)
