"""Candidates (a placement and a partition) and their trials."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from synth.certificate import Certificate
from synth.families import placements_for
from synth.plan.recompute.choice import Choice
from synth.schedule.model import Placement
from synth.schedule.placements import usual
from synth.solve.evaluate.evaluate import EvaluatedSchedule
from synth.solve.problem import Problem
from synth.solve.result import Baseline, Result, StoppedBy, rank_key, relative_gap


class Partitioning(StrEnum):
    """Way to partition the model: as given, balanced (counting R's time), or searched for."""

    GIVEN = "given"
    EVEN = "even"
    SEARCHED = "searched"


class Candidate(NamedTuple):
    """A placement by its name, the problem on it, and which stages recompute there."""

    name: str
    problem: Problem
    choice: Choice = ()

    def on(self, problem: Problem) -> "Candidate":
        """The same placement in another partition."""
        return self._replace(problem=problem)


def placements_to_try(num_ranks: int, num_layers: int) -> dict[str, Placement]:
    """By name, the usual placements, and those of published schedules that layers are enough for.

    Raises:
        SynthError: a number of ranks below 1.
    """
    found = usual(num_ranks)
    for name, where in placements_for(num_ranks, num_layers).items():
        if num_ranks > 1 and where not in found.values():
            found[name] = where
    return found


@dataclass(eq=False)
class Trial:
    """Knowledge about a candidate: the best schedule found, and a lower bound on all schedules.

    The bound, with its certificate, holds for one partition, which is another one where the model
    was cut anew for the stages that recompute; `is_over` says that more time would find nothing
    better there. `num_trials` is how often it was searched. `published` are the published schedules
    that were judged before, all of them with `is_judged`, and `moved` is the best one of those that
    move what forwards save. With `is_fixed` what was found is one of these, which no search starts
    from.
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

    @property
    def name(self) -> str:
        """The placement's."""
        return self.candidate.name

    @property
    def problem(self) -> Problem:
        """On the partition of what was found, or that to begin with."""
        return self.candidate.problem if self.found is None else self.found.problem

    @property
    def gap(self) -> float | None:
        """(value − bound) / value."""
        if self.value_us is None:
            return None
        return relative_gap(self.value_us, min(self.value_us, self.lower_bound_us))

    @property
    def value_us(self) -> int | None:
        """The best value found."""
        return None if self.found is None else self.found.value_us

    @property
    def is_impossible(self) -> bool:
        """True if the candidate is proven infeasible."""
        return self.found is not None and self.found.stopped_by == StoppedBy.INFEASIBLE

    def take(self, found: Result) -> None:
        """Keep the better one of what was found, and what is proven on its partition."""
        self.seconds += found.wall_s
        self.num_searches += 1
        before = (self.value_us, self.lower_bound_us)
        if self.value_us is None or rank_key(found.value_us) < rank_key(self.value_us):
            self._take_bound(found, self.bound_on(found.problem))
            self.found = found
        elif self.bound_on(found.problem):
            self._take_bound(found, self.lower_bound_us)
        # One that ended by itself may find more in more time, as all its parts then have more; a
        # deterministic one always does.
        gained = (self.value_us, self.lower_bound_us) != before
        is_exhausted = found.stopped_by == StoppedBy.EXHAUSTED and not gained
        self.is_over = is_exhausted or found.stopped_by in (StoppedBy.OPTIMAL, StoppedBy.INFEASIBLE)

    def _take_bound(self, found: Result, known_us: int) -> None:
        """Take the better bound of what was found and what is known."""
        self.lower_bound_us = max(found.lower_bound_us, known_us)
        if found.lower_bound_us >= known_us:
            self.certificate = found.certificate

    def bound_on(self, problem: Problem) -> int:
        """Return the lower bound if it is of this partition, else 0."""
        return self.lower_bound_us if problem.partition == self.problem.partition else 0


class Chosen(NamedTuple):
    """The best of all candidates, and what came of each of them, the best one first.

    The result's bound holds for all of them, each on its own placement and partition; where its
    `bound_scope` says so, for every other partition too. With `is_cut_short` the search did not
    answer in time: this is the best that it had told of, and of the others there is the bound only.
    """

    result: Result
    trials: tuple[Trial, ...]
    is_cut_short: bool = False

    @property
    def name(self) -> str:
        """Name of the best placement."""
        return self.trials[0].name
