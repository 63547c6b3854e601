"""The options of a memory curve: what the search of each point chooses from, and its effort."""

from synth.errors import SynthError
from synth.options.arguments.curve import CurveArguments
from synth.options.conflicts import refuse_beside
from synth.options.deadline import Deadline
from synth.options.defaults import AUTO, LINEAR
from synth.options.keywords import word
from synth.options.partition import EVEN, is_searched
from synth.options.problem_arguments import ProblemArguments
from synth.options.recompute import read_recompute
from synth.options.weights import GATHER, RING, STAY, check_goes_with_weights, read_weight_passing
from synth.plan.choose.candidates import Candidate, Partitioning
from synth.plan.memory_curve.curve_search import Effort
from synth.plan.search_space import LimitedSpace, OneCandidate, Placements, WeightPlaces
from synth.profile import Profile
from synth.schedule.placements import placement as named_placement
from synth.system.processors import num_processors
from synth.units import parse_fraction, parse_seconds

# More parallel searches leave each of them too few workers on most machines.
_MOST_JOBS = 4


def read_curve(given: CurveArguments, profile: Profile) -> LimitedSpace:
    """Read what the search of each point chooses from, without memory limits.

    Args:
        given: the options.
        profile: the profile that they name, on their hardware.

    Raises:
        SynthError: an option is wrong.
    """
    ranks, micro_batches = given.pipeline.ranks, given.pipeline.micro_batches
    if word(given.placement) == AUTO:
        raise SynthError(
            "--placement auto: one curve is of one placement; give linear, looped:N, v or another "
            "that `synth solve` names, and a curve for each"
        )
    if given.weights != STAY:
        _check_weights(given)
    if given.weights in (RING, GATHER):
        asked = ProblemArguments(profile, micro_batches, given.partition, given.objective)
        layout = None if word(given.placement) == LINEAR else given.placement
        moving = read_weight_passing(given.weights, layout, ranks, asked)
        read_recompute(given.recompute, moving[0].problem.costs.num_stages)
        return WeightPlaces(moving, (), profile)
    where = named_placement(given.placement, ranks)

    search_partitions = is_searched(given.partition)
    sizes = EVEN if search_partitions else given.partition
    asked = ProblemArguments(profile, micro_batches, sizes, given.objective)
    problem = asked.on(where, Deadline.of(given.time_limit).for_partitions())
    choice = read_recompute(given.recompute, problem.costs.num_stages)
    one = Candidate(given.placement, problem, choice)
    if search_partitions:
        return Placements((one,), profile, Partitioning.SEARCHED)
    if given.weights == STAY:
        return OneCandidate(one)
    weight_passing = read_weight_passing(given.weights, None, ranks, asked)
    if not weight_passing:
        raise SynthError(
            f"--weights {given.weights}: weights can only stay with {micro_batches} micro-batches "
            f"on {ranks} ranks; give a multiple of {ranks}, or leave --weights out"
        )
    return WeightPlaces(weight_passing, (one,), profile)


def read_effort(given: CurveArguments) -> Effort:
    """Read the effort of a memory curve; by default several points are solved at once.

    Raises:
        SynthError: a time or a share is not understood.
    """
    cores = num_processors()
    jobs = given.jobs or max(1, min(_MOST_JOBS, cores // 2, given.points))
    return Effort(
        given.points,
        parse_seconds(given.time_limit),
        jobs,
        given.workers or max(1, cores // jobs),
        parse_fraction(given.search.gap),
        given.search.seed,
    )


def _check_weights(given: CurveArguments) -> None:
    """Refuse what does not go with weight passing; with auto, pipelines have a placement."""
    weights, placement = given.weights, given.placement
    partition, recompute = given.partition, given.recompute
    refused = is_searched(partition), "a curve has one partition for each candidate; give even"
    others = {f"--partition {partition}": refused}
    if weights in (RING, GATHER):
        # Layers are refused where they are read.
        is_given = not word(recompute).startswith(("none", "layers:"))
        others[f"--recompute {recompute}"] = is_given, "a curve with it has none; give none"
    refuse_beside(f"--weights {weights}", others)
    is_default = weights == AUTO or word(placement) == LINEAR
    check_goes_with_weights(weights, None if is_default else placement, partition, recompute, {})
