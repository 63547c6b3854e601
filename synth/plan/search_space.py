"""Search spaces: one candidate, placements, places of weights, or orders that never flush.

Commands, the Python API, comparisons and memory curves make a space and search it, and need not
tell the kinds apart.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from synth.plan.choose.candidates import Candidate, OnStandings, Partitioning, Ranking
from synth.plan.choose.race_run import solve_best_of
from synth.plan.recompute.choice_search import Listeners
from synth.plan.recompute.repartition import solve_repartitioning
from synth.plan.weight_passing.choice import WeightCandidate
from synth.plan.weight_passing.data_parallel import DATA_PARALLEL
from synth.plan.weight_passing.weights_race import solve_choosing_weights
from synth.profile import Profile
from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.flush_free.search import solve_flush_free
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem


class SearchSpace(ABC):
    """The candidates of a search, all of one objective."""

    @property
    @abstractmethod
    def all_candidates(self) -> Sequence[Candidate | WeightCandidate]:
        """The candidates, each with a name and its problem; at least one."""

    @abstractmethod
    def search(
        self,
        options: SolveOptions,
        listeners: Listeners,
        stop: threading.Event,
        on_standings: OnStandings = lambda _: None,
    ) -> Ranking:
        """Find the best schedule, with a bound that holds for all candidates.

        Args:
            options: the time limit is for all candidates together.
            listeners: returns the listener for the problem of a candidate; it hears only of what is
                better than all before.
            stop: set it, from any thread, to get the best so far.
            on_standings: called after each step with copies of the trials, best first; not called
                where there is one candidate.
        """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the candidates."""
        return tuple(one.name for one in self.all_candidates)

    def name_of(self, problem: Problem) -> str:
        """Return the name of the candidate that has a problem, or else its placement."""
        where = problem.placement
        same = (one.name for one in self.all_candidates if one.problem is problem)
        placed = (one.name for one in self.all_candidates if one.problem.placement == where)
        return next(same, None) or next(placed)


@dataclass(frozen=True)
class OneCandidate(SearchSpace):
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

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners,
        stop: threading.Event,
        on_standings: OnStandings = lambda _: None,
    ) -> Ranking:
        """Search from the hint of the options, if there is one."""
        _, problem, choice, _ = self.candidate
        found = solve_repartitioning(self.profile, problem, choice, options, listeners, stop)
        return Ranking(found, ())


@dataclass(frozen=True)
class Placements(SearchSpace):
    """Placements whose weights stay with their stages; see `solve_best_of`."""

    candidates: tuple[Candidate, ...]
    profile: Profile
    partitioning: Partitioning

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The placements."""
        return self.candidates

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners,
        stop: threading.Event,
        on_standings: OnStandings = lambda _: None,
    ) -> Ranking:
        """Judge the published schedules, then give the best candidates timed trials."""
        chosen_from = self.candidates, self.profile, self.partitioning
        return solve_best_of(*chosen_from, options, listeners, stop, on_standings)


@dataclass(frozen=True)
class WeightPlaces(SearchSpace):
    """Problems whose weights are passed on or gathered, and placements whose weights stay.

    Attributes:
        moving: the problems whose weights move, at least one.
        staying: the placements whose weights stay.
        profile: the profile of the costs.
        partitioning: way in which the model is partitioned where weights stay.
    """

    moving: tuple[WeightCandidate, ...]
    staying: tuple[Candidate, ...]
    profile: Profile
    partitioning: Partitioning

    @cached_property
    def copies(self) -> Candidate | None:
        """Data parallelism, which is one of the candidates where weights may stay."""
        return Candidate(DATA_PARALLEL, replace(self.moving[0].problem)) if self.staying else None

    @property
    def all_candidates(self) -> Sequence[Candidate | WeightCandidate]:
        """All candidates."""
        return (*self.moving, *([] if self.copies is None else [self.copies]), *self.staying)

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners,
        stop: threading.Event,
        on_standings: OnStandings = lambda _: None,
    ) -> Ranking:
        """Give each candidate a part of the time, and the best ones the rest."""
        candidates = self.moving, self.staying, self.copies
        chosen_from = *candidates, self.profile, self.partitioning
        return solve_choosing_weights(*chosen_from, options, listeners, stop, on_standings)


@dataclass(frozen=True)
class WithoutFlush(SearchSpace):
    """Orders of one placement that never flush the pipeline."""

    name: str
    flush_free: FlushFreeProblem

    @property
    def all_candidates(self) -> Sequence[Candidate]:
        """The placement."""
        return (Candidate(self.name, self.flush_free.problem),)

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners,
        stop: threading.Event,
        on_standings: OnStandings = lambda _: None,
    ) -> Ranking:
        """Minimize the time of a micro-batch while the pipeline is full."""
        listener = listeners(self.flush_free.problem)
        return Ranking(solve_flush_free(self.flush_free, options, listener, stop), ())
