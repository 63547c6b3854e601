"""The options of a memory curve: what the search of each point chooses from, and its effort."""

from synth.errors import SynthError
from synth.options.arguments.curve import CurveArguments
from synth.options.conflicts import (
    GATHER,
    RING,
    STAY,
    check_curve_of_unequal_ranks,
    check_weights_of_curve,
)
from synth.options.deadline import Deadline
from synth.options.defaults import LINEAR
from synth.options.recompute import read_recompute, tell_of_layers_in_place
from synth.options.values import AUTO, EVEN, Partition, word
from synth.options.weights import read_weight_passing
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.memory_curve.curve_search import Effort
from synth.plan.problem_arguments import ProblemArguments
from synth.plan.recompute.layers_in_place import check_stages
from synth.plan.search_space import LimitedSpace, OneCandidate, Placements, WeightPlaces
from synth.profile import Profile
from synth.schedule.placements import placement as named_placement
from synth.system.processors import num_processors

# More parallel searches leave each of them too few workers on most machines.
_MOST_JOBS = 4


def read_curve(given: CurveArguments, profile: Profile) -> LimitedSpace:
    """Read what the search of each point chooses from, without memory limits.

    Args:
        profile: the profile that they name, on their hardware.

    Raises:
        SynthError: an option is wrong.
    """
    ranks, micro_batches = given.pipeline.ranks, given.pipeline.micro_batches
    if word(given.placement) == AUTO:
        raise SynthError(
            "§placement auto: one curve is of one placement; give linear, looped:N, v or another "
            "that `synth solve` names, and a curve for each"
        )
    if profile.rank_speeds is not None:
        check_curve_of_unequal_ranks(given)
    if given.weights != STAY:
        check_weights_of_curve(given)
    if given.weights in (RING, GATHER):
        asked = ProblemArguments(profile, micro_batches, given.partition, given.objective)
        layout = None if word(given.placement) == LINEAR else given.placement
        moving = read_weight_passing(given.weights, layout, ranks, asked)
        read_recompute(given.recompute, moving[0].problem.costs.num_stages)
        return WeightPlaces(moving, (), profile)
    where = named_placement(given.placement, ranks)

    search_partitions = given.partition == AUTO
    sizes: Partition = EVEN if search_partitions else given.partition
    asked = ProblemArguments(profile, micro_batches, sizes, given.objective)
    problem = asked.on(where, Deadline.of(given.time_limit).for_partitions())
    tell_of_layers_in_place(given.recompute, profile)
    choice = read_recompute(given.recompute, problem.costs.num_stages)
    check_stages(problem, choice, profile)
    one = Candidate(given.placement, problem, choice)
    if search_partitions:
        return Placements((one,), profile, Partitioning.SEARCHED)
    if given.weights == STAY:
        return OneCandidate(one)
    weight_passing = read_weight_passing(given.weights, None, ranks, asked)
    if not weight_passing:
        raise SynthError(
            f"§weights {given.weights}: weights can only stay with {micro_batches} micro-batches "
            f"on {ranks} ranks; give a multiple of {ranks}, or leave §weights out"
        )
    return WeightPlaces(weight_passing, (one,), profile)


def read_effort(given: CurveArguments) -> Effort:
    """Read the effort of a memory curve; by default several points are solved at once."""
    cores = num_processors()
    jobs = given.jobs or max(1, min(_MOST_JOBS, cores // 2, given.points))
    return Effort(
        given.points,
        given.time_limit,
        jobs,
        given.workers or max(1, cores // jobs),
        given.search.gap,
        given.search.seed,
    )
