"""The choices of `--weights`, and the candidates that follow from each."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple, Protocol, Self

from synth.errors import SynthError
from synth.plan.partition.balance import balance
from synth.profile import Profile
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from synth.solver.search_state import SearchState
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.watch import SolveWatch
from synth.solver.weight_passing.bounds import least_cap_bytes
from synth.solver.weight_passing.least_memory import limits_bytes
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.search import WeightPassingSearch


class WeightChoice(StrEnum):
    """The choice of `synth solve --weights`.

    stay    each rank keeps the stages that it holds, as pipelines do
    ring    weights are passed from rank to rank (WeiPipe)
    gather  weights are sharded and gathered (ZeRO)
    auto    the best of all three, and of data parallelism
    """

    STAY = "stay"
    RING = "ring"
    GATHER = "gather"
    AUTO = "auto"

    @property
    def movements(self) -> tuple[WeightMovement, ...]:
        """The kinds of movement that are tried."""
        return {
            WeightChoice.STAY: (),
            WeightChoice.RING: (WeightMovement.RING,),
            WeightChoice.GATHER: (WeightMovement.GATHER,),
            WeightChoice.AUTO: tuple(WeightMovement),
        }[self]


def even_stages(profile: Profile, num_stages: int) -> tuple[int, ...]:
    """Return layers per stage that balance the stages among themselves; ranks have equal work."""
    return balance(profile, Placement.linear(num_stages), None, num_stages)


class WeightSearch(Protocol):
    """A search over the places of weights, which may run in several parts."""

    @property
    def state(self) -> SearchState:
        """Incumbent and bound."""

    @property
    def is_over(self) -> bool:
        """True if more time would find nothing better."""

    def run(self, seconds: float | None = None) -> Result:
        """Search for some seconds, by default until the time limit; return the best so far."""


class WeightCandidate(Protocol):
    """A named problem, with the search that decides where its weights are."""

    @property
    def name(self) -> str:
        """The name of the candidate."""

    @property
    def problem(self) -> Problem:
        """The problem."""

    @property
    def needed_bytes(self) -> int:
        """A memory limit below which no schedule fits."""

    def limits_bytes(self) -> tuple[int, int | None]:
        """Return a limit that every schedule exceeds below, and the least one known to be kept."""

    def on(self, problem: Problem) -> Self:
        """Return the candidate for another problem on the same placement."""

    def begin(self, options: SolveOptions, watch: SolveWatch) -> WeightSearch:
        """Make the search."""


class WeightPassingCandidate(NamedTuple):
    """A named problem with weight passing."""

    name: str
    passing: WeightPassingProblem

    @property
    def problem(self) -> Problem:
        """The problem, on copies of all stages on each rank."""
        return self.passing.problem

    @property
    def needed_bytes(self) -> int:
        """A memory limit below which no schedule fits."""
        return least_cap_bytes(self.passing)

    def limits_bytes(self) -> tuple[int, int | None]:
        """Return a limit in closed form, and that of the least memory known."""
        return limits_bytes(self.passing)

    def on(self, problem: Problem) -> Self:
        """Return the candidate for another problem on the same placement."""
        return self._replace(passing=replace(self.passing, problem=problem))

    def begin(self, options: SolveOptions, watch: SolveWatch) -> WeightPassingSearch:
        """Make the search over orders and visits."""
        return WeightPassingSearch(self.passing, options, watch)


def weight_passing_candidates(
    movements: Iterable[WeightMovement],
    layout: str | None,
    num_ranks: int,
    num_layers: int,
    problem_on: Callable[[Placement], Problem],
) -> tuple[tuple[WeightPassingCandidate, ...], dict[str, str]]:
    """Return the candidates of some movements, and by name the reasons why others are none.

    A ring has as many stages as ranks. All-gathers are tried with several numbers of stages per
    rank: more stages are gathered in smaller parts.

    Args:
        movements: the kinds of movement that are tried.
        layout: the placement to use, such as `all-stages:2`; None: those that the movement admits.
        num_layers: the layers of the model, which has at least one for each stage.
        problem_on: makes the problem on a placement.
    """
    found: list[WeightPassingCandidate] = []
    refusals: dict[str, str] = {}
    for movement in movements:
        for name in _layouts(movement, layout, num_ranks, num_layers):
            title = f"{movement}, {name}"
            try:
                problem = problem_on(placement(name, num_ranks))
                found.append(WeightPassingCandidate(title, WeightPassingProblem(problem, movement)))
            except SynthError as error:
                refusals[title] = str(error)
    return tuple(found), refusals


def _layouts(
    movement: WeightMovement, layout: str | None, num_ranks: int, num_layers: int
) -> tuple[str, ...]:
    if layout is not None:
        return (layout,)
    most = num_layers // num_ranks
    if movement == WeightMovement.RING or most < 1:
        return ("all-stages:1",)
    even = next((n for n in range(1, most + 1) if num_layers % (n * num_ranks) == 0), 1)
    counts = sorted({1, *(n for n in WEIGHT_PASSING.stages_per_rank if n <= most), even})
    return tuple(f"all-stages:{n}" for n in counts)
