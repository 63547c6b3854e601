"""The problem whose memory curve is traced, and the choices left to the search of each point."""

from typing import TYPE_CHECKING, NamedTuple

from synth.errors import SynthError
from synth.options.deadline import Deadline
from synth.options.defaults import AUTO
from synth.options.keywords import word
from synth.options.partition import EVEN, is_searched
from synth.options.problem_arguments import ProblemArguments
from synth.options.recompute import read_recompute
from synth.profile import Profile

if TYPE_CHECKING:
    from synth.plan.recompute.choice import Choice
    from synth.solver.problem import Problem


class CurveProblem(NamedTuple):
    """A problem without memory limits, with the recomputation and the partitions to search."""

    problem: "Problem"
    recompute: "Choice"
    search_partitions: bool


def read_curve(
    profile: Profile,
    placement: str,
    ranks: int,
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
    from synth.schedule.placements import placement as named_placement

    if word(placement) == AUTO:
        raise SynthError(
            "--placement auto: one curve is of one placement; give linear, looped:N, v or another "
            "that `synth solve` names, and a curve for each"
        )
    where = named_placement(placement, ranks)

    search_partitions = is_searched(partition)
    sizes = EVEN if search_partitions else partition
    asked = ProblemArguments(profile, micro_batches, sizes, objective)
    problem = asked.on(where, Deadline.of(time_limit).for_partitions())
    choice = read_recompute(recompute, problem.costs.num_stages)
    if search_partitions:
        check_partitions_searchable(problem, choice)
    return CurveProblem(problem, choice, search_partitions)
