"""Candidates (a placement and a partition) and their trials."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from synth.families import placements_for
from synth.plan.recompute.attempts import ChoiceAttempts
from synth.plan.recompute.choice import Choice
from synth.schedule.files.certificate import Certificate
from synth.schedule.model import Placement
from synth.schedule.placements import usual
from synth.search.outcome import StoppedBy, rank_key, relative_gap
from synth.solver.evaluate.evaluate import EvaluatedSchedule
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem
from synth.solver.result import Baseline, Result, judged_result
from synth.solver.watch import OnImprovement, SolveWatch


class Partitioning(StrEnum):
    """Way to partition the model: as given, balanced (counting R's time), or searched for."""

    GIVEN = "given"
    EVEN = "even"
    SEARCHED = "searched"


class Candidate(NamedTuple):
    """A named placement, the problem on it, and the stages that recompute.

    `order` is the published schedule whose order the answer must have; None: any order.
    """

    name: str
    problem: Problem
    choice: Choice = ()
    order: str | None = None

    def on(self, problem: Problem) -> "Candidate":
        """Return the same placement with another problem."""
        return self._replace(problem=problem)


def placements_to_try(num_ranks: int, num_layers: int) -> dict[str, Placement]:
    """Return by name the usual and the published placements for which there are enough layers.

    Raises:
        SynthError: a number of ranks below 1.
    """
    found = usual(num_ranks)
    for name, where in placements_for(num_ranks, num_layers).items():
        if num_ranks > 1 and where not in found.values():
            found[name] = where
    return found


def decided(candidate: Candidate) -> Candidate:
    """Choose no recomputation where it only costs time, or where nothing is to be chosen.

    It only costs time without a memory limit.
    """
    problem = candidate.problem
    has_choice = problem.further_ops or problem.profile is not None
    if candidate.choice is None and (problem.caps_bytes is None or not has_choice):
        return candidate._replace(choice=())
    return candidate


@dataclass(eq=False)
class Trial:
    """A candidate with its best schedule so far, and a lower bound on all schedules.

    As in black-box optimization (Golovin et al., "Google Vizier", KDD 2017), a trial gets time more
    than once, and may be pruned at any moment.
    The bound and its certificate hold for the partition of `problem`. `is_over` says that more time
    would find nothing better there. `num_searches` counts the searches. `published` are the
    published schedules judged before (all of them with `is_judged`), and `moved` is the best one
    that offloads activations. With `is_fixed`, `found` is such a schedule, from which no search can
    start. `least_bytes` is a memory limit below which nothing fits; None: that of the problem.
    `attempts` are those of its searches for recomputation.
    """

    candidate: Candidate
    lower_bound_us: int
    found: Result | None = None
    seconds: float = 0.0
    is_over: bool = False
    num_searches: int = 0
    published: tuple[Baseline, ...] = ()
    moved: EvaluatedSchedule | None = None
    is_judged: bool = False
    is_fixed: bool = False
    certificate: Certificate | None = None
    least_bytes: int | None = None
    attempts: ChoiceAttempts = field(default_factory=ChoiceAttempts)

    @property
    def name(self) -> str:
        """Name of the placement."""
        return self.candidate.name

    @property
    def problem(self) -> Problem:
        """The problem in the partition of the best schedule, or else in the first one."""
        return self.candidate.problem if self.found is None else self.found.problem

    @property
    def gap(self) -> float | None:
        """(value − bound) / value."""
        if self.value_us is None:
            return None
        return relative_gap(self.value_us, min(self.value_us, self.lower_bound_us))

    @property
    def value_us(self) -> int | None:
        """The best value found; None if there is none."""
        return None if self.found is None else self.found.value_us

    @property
    def is_impossible(self) -> bool:
        """True if the candidate is proven infeasible."""
        return self.found is not None and self.found.stopped_by == StoppedBy.INFEASIBLE

    @property
    def needed_bytes(self) -> int:
        """A memory limit below which no schedule fits."""
        if self.least_bytes is not None:
            return self.least_bytes
        return max(needed_bytes(self.candidate.problem))

    def distance_to(self, problem: Problem) -> int:
        """Return -1 for the trial of this very problem, 0 in the same partition, 1 on the same
        placement, and 2 elsewhere.
        """
        if self.candidate.problem is problem:
            return -1
        if self.problem.placement != problem.placement:
            return 2
        return int(self.problem.partition != problem.partition or self.is_fixed)

    def is_of_same(self, other: "Trial") -> bool:
        """Return True for trials of one placement on one partition, with the same choice of R."""
        return (
            not (self.is_fixed or other.is_fixed)
            and (self.name, self.candidate.choice) == (other.name, other.candidate.choice)
            and self.candidate.problem.partition == other.candidate.problem.partition
            and self.problem.partition == other.problem.partition
        )

    def offer(self, problem: Problem, found: EvaluatedSchedule) -> bool:
        """Take a schedule that no search found, if it is better; return True if it is.

        Args:
            problem: the problem that it solves, with its partition and its recomputed layers.
        """
        is_better = self.value_us is None or found.value_us < self.value_us
        if is_better:
            self.found = judged_result(problem, found, self.lower_bound_us)
        return is_better

    def take(self, found: Result) -> None:
        """Take the better schedule of a search, and the better bound on its partition."""
        self.seconds += found.wall_s
        self.num_searches += 1
        before = (self.value_us, self.lower_bound_us)
        if self.value_us is None or rank_key(found.value_us) < rank_key(self.value_us):
            self._take_bound(found, self.bound_on(found.problem))
            self.found = found
        elif self.bound_on(found.problem):
            self._take_bound(found, self.lower_bound_us)
        # A search that ended may find more when its parts get more time; a deterministic one does.
        gained = (self.value_us, self.lower_bound_us) != before
        is_exhausted = found.stopped_by == StoppedBy.NOTHING_BETTER and not gained
        self.is_over = is_exhausted or found.stopped_by in (StoppedBy.OPTIMAL, StoppedBy.INFEASIBLE)

    def _take_bound(self, found: Result, known_us: int) -> None:
        """Take the bound of a result if it is better than a known one."""
        self.lower_bound_us = max(found.lower_bound_us, known_us)
        if found.lower_bound_us >= known_us:
            self.certificate = found.certificate

    def bound_on(self, problem: Problem) -> int:
        """Return the lower bound if it is of this partition, else 0."""
        return self.lower_bound_us if problem.partition == self.problem.partition else 0


def best_us(trials: Iterable[Trial]) -> int | None:
    """Return the best value of some trials; None if none has one."""
    values = (trial.value_us for trial in trials)
    return min((value_us for value_us in values if value_us is not None), default=None)


OnTrials = Callable[[Sequence[Trial]], None]


@dataclass(frozen=True)
class SearchWatch:
    """The listeners of a search, and the event that stops it.

    Attributes:
        on_improvement: called with improvements, each better than all before.
        stop: set it, from any thread, to get the best so far.
        on_trials: called after each step with copies of the trials, best first; not called
            where there is one candidate.
    """

    on_improvement: OnImprovement | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    on_trials: OnTrials = lambda _: None

    @property
    def of_one(self) -> SolveWatch:
        """What a search of one candidate takes."""
        return SolveWatch(self.on_improvement, self.stop)


class Ranking(NamedTuple):
    """The best result over all candidates, and the trials of all, best first.

    The bound of the result holds for all candidates, each on its placement and partition, and for
    all partitions if its `bound_scope` says so. With `is_interim` the search had not ended:
    the result is the best one announced, and the other trials have bounds only.
    """

    result: Result
    trials: tuple[Trial, ...]
    is_interim: bool = False

    @property
    def name(self) -> str:
        """Name of the best placement."""
        return self.trials[0].name
