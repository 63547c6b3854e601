"""The problem whose memory curve is traced, and the choices left to the search of each point."""

from typing import TYPE_CHECKING, NamedTuple

from synth.options.deadline import Deadline
from synth.options.partition import EVEN, is_searched
from synth.options.problem_arguments import ProblemArguments
from synth.options.recompute import read_recompute
from synth.profile import Profile

if TYPE_CHECKING:
    from synth.plan.recompute.choice import Choice
    from synth.schedule.model import Placement
    from synth.solver.problem import Problem


class CurveProblem(NamedTuple):
    """A problem without memory limits, with the recomputation and the partitions to search."""

    problem: "Problem"
    recompute: "Choice"
    search_partitions: bool


def read_curve(
    profile: Profile,
    where: "Placement",
    micro_batches: int,
    *,
    objective: str,
    partition: str,
    recompute: str,
    time_limit: str,
) -> CurveProblem:
    """Read the options of a memory curve, all as on the command line.

    Raises:
        SynthError: an option is wrong, or partitions cannot be searched for these.
    """
    from synth.plan.memory_curve.curve_file import check_partitions_searchable

    search_partitions = is_searched(partition)
    sizes = EVEN if search_partitions else partition
    asked = ProblemArguments(profile, micro_batches, sizes, objective)
    problem = asked.on(where, Deadline.of(time_limit).for_partitions())
    choice = read_recompute(recompute, problem.costs.num_stages)
    if search_partitions:
        check_partitions_searchable(problem, choice)
    return CurveProblem(problem, choice, search_partitions)
