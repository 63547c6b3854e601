"""The candidates of a search over data-parallel pipelines: placements of one pipeline."""

from collections.abc import Callable
from typing import NamedTuple, Self

from synth.errors import SynthError
from synth.plan.tuning import SHARDED_PIPELINES
from synth.plan.weight_passing.least_share import one_of, with_least_share
from synth.plan.weight_passing.sharded_search import ShardedPipelinesSearch
from synth.schedule.error import ScheduleError
from synth.schedule.model import Placement
from synth.schedule.placements import placement
from synth.schedule.verify_weights import check_parameters_known
from synth.solver.infeasibility import needed_bytes
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.watch import SolveWatch


class ShardedCandidate(NamedTuple):
    """A placement of one pipeline, and the problem of all data-parallel pipelines on it."""

    name: str
    problem: Problem

    @property
    def needed_bytes(self) -> int:
        """A memory limit below which no schedule fits, whatever is sharded."""
        costs = with_least_share(self.problem.costs, self.problem.num_replicas)
        return max(needed_bytes(one_of(self.problem, costs)))

    def limits_bytes(self) -> tuple[int, int | None]:
        """Return a limit in closed form; none is known to be kept."""
        return self.needed_bytes, None

    def on(self, problem: Problem) -> Self:
        """Return the candidate for another problem on the same placement."""
        return self._replace(problem=problem)

    def begin(self, options: SolveOptions, watch: SolveWatch) -> ShardedPipelinesSearch:
        """Make the search over what is sharded and the places of collectives."""
        return ShardedPipelinesSearch(self.problem, options, watch)


def sharded_candidates(
    layout: str | None, num_ranks: int, problem_on: Callable[[Placement], Problem]
) -> tuple[tuple[ShardedCandidate, ...], dict[str, str]]:
    """Return the candidates, and by name the reasons why other placements are none.

    Args:
        layout: the placement of one pipeline, such as `looped:2`; None: the usual ones.
        num_ranks: the ranks of one pipeline.
        problem_on: makes the problem of all pipelines, given the placement of one.
    """
    found: list[ShardedCandidate] = []
    refusals: dict[str, str] = {}
    for name in SHARDED_PIPELINES.placements if layout is None else (layout,):
        try:
            problem = problem_on(placement(name, num_ranks))
            check_parameters_known(problem.costs)
        except (SynthError, ScheduleError) as error:
            refusals[name] = str(error)
            continue
        if all(problem.placement != other.problem.placement for other in found):
            found.append(ShardedCandidate(name, problem))
    return tuple(found), refusals
