"""What a search chooses from: one candidate, placements, places of weights, or orders that repeat.

Each kind of space is a class with the same `search`, so that commands, the Python API, comparisons
and memory curves make a space and need not tell them apart.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

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


def _ignore(_: object) -> None:
    """Listen to nothing."""


class SearchSpace(Protocol):
    """The candidates of a search, all of one objective."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the candidates, at least one."""

    def name_of(self, problem: Problem) -> str:
        """Return the name of the candidate of a problem that a listener is asked for."""

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners = _ignore,
        stop: threading.Event | None = None,
        on_standings: OnStandings = _ignore,
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


@dataclass(frozen=True)
class OneCandidate:
    """One placement on its partition, or also on one that counts R's time.

    Attributes:
        candidate: the placement with its problem.
        profile: the profile of the costs; None: the partition is kept.
    """

    candidate: Candidate
    profile: Profile | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the placement."""
        return (self.candidate.name,)

    def name_of(self, problem: Problem) -> str:
        """Return the name of the placement."""
        return self.candidate.name

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners = _ignore,
        stop: threading.Event | None = None,
        on_standings: OnStandings = _ignore,
    ) -> Ranking:
        """Search from the hint of the options, if there is one."""
        _, problem, choice, _ = self.candidate
        found = solve_repartitioning(self.profile, problem, choice, options, listeners, stop)
        return Ranking(found, ())


@dataclass(frozen=True)
class Placements:
    """Placements whose weights stay with their stages; see `solve_best_of`."""

    candidates: tuple[Candidate, ...]
    profile: Profile
    partitioning: Partitioning

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the placements."""
        return tuple(one.name for one in self.candidates)

    def name_of(self, problem: Problem) -> str:
        """Return the name of a problem's placement."""
        return _name_of(problem, self.candidates)

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners = _ignore,
        stop: threading.Event | None = None,
        on_standings: OnStandings = _ignore,
    ) -> Ranking:
        """Judge the published schedules, then give the best candidates timed trials."""
        return solve_best_of(
            self.candidates,
            self.profile,
            self.partitioning,
            options,
            listeners,
            stop,
            on_standings,
        )


@dataclass(frozen=True)
class WeightPlaces:
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
    def _all(self) -> tuple[Candidate | WeightCandidate, ...]:
        return (*self.moving, *([] if self.copies is None else [self.copies]), *self.staying)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all candidates."""
        return tuple(one.name for one in self._all)

    def name_of(self, problem: Problem) -> str:
        """Return the name of the candidate that has a problem, or else its placement."""
        same = (one.name for one in self._all if one.problem is problem)
        return next(same, "") or _name_of(problem, self._all)

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners = _ignore,
        stop: threading.Event | None = None,
        on_standings: OnStandings = _ignore,
    ) -> Ranking:
        """Give each candidate a part of the time, and the best ones the rest."""
        return solve_choosing_weights(
            self.moving,
            self.staying,
            self.copies,
            self.profile,
            self.partitioning,
            options,
            listeners,
            stop,
            on_standings,
        )


@dataclass(frozen=True)
class WithoutFlush:
    """Orders of one placement that never flush the pipeline."""

    name: str
    flush_free: FlushFreeProblem

    @property
    def names(self) -> tuple[str, ...]:
        """The name of the placement."""
        return (self.name,)

    def name_of(self, problem: Problem) -> str:
        """Return the name of the placement."""
        return self.name

    def search(
        self,
        options: SolveOptions,
        listeners: Listeners = _ignore,
        stop: threading.Event | None = None,
        on_standings: OnStandings = _ignore,
    ) -> Ranking:
        """Minimize the time of a micro-batch while the pipeline is full."""
        listener = listeners(self.flush_free.problem)
        return Ranking(solve_flush_free(self.flush_free, options, listener, stop), ())


def _name_of(problem: Problem, candidates: Iterable[Candidate | WeightCandidate]) -> str:
    """Return the name of the first candidate with the placement of a problem."""
    where = problem.placement
    return next(one.name for one in candidates if one.problem.placement == where)
