"""The problem whose memory curve is traced, and the choices left to the search of each point."""

from typing import TYPE_CHECKING, NamedTuple

from synth.errors import SynthError
from synth.options.conflicts import refuse_beside
from synth.options.deadline import Deadline
from synth.options.defaults import AUTO, LINEAR
from synth.options.keywords import word
from synth.options.partition import EVEN, is_searched
from synth.options.problem_arguments import ProblemArguments
from synth.options.recompute import read_recompute
from synth.options.weights import GATHER, RING, STAY, check_goes_with_weights, read_weight_passing
from synth.profile import Profile

if TYPE_CHECKING:
    from synth.plan.recompute.choice import Choice
    from synth.plan.weight_passing.candidates import WeightCandidates
    from synth.solver.problem import Problem


class CurveProblem(NamedTuple):
    """A problem without memory limits, with the recomputation and the partitions to search.

    `candidates` are those of `--weights`; None: weights stay.
    """

    problem: "Problem"
    recompute: "Choice"
    search_partitions: bool
    candidates: "WeightCandidates | None" = None


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
    weights: str = STAY,
) -> CurveProblem:
    """Read the options of a memory curve, all as on the command line.

    Raises:
        SynthError: an option is wrong, or partitions cannot be searched for these.
    """
    from synth.plan.choose.candidates import Candidate
    from synth.plan.memory_curve.curve_file import check_partitions_searchable
    from synth.plan.weight_passing.candidates import WeightCandidates
    from synth.schedule.placements import placement as named_placement

    if word(placement) == AUTO:
        raise SynthError(
            "--placement auto: one curve is of one placement; give linear, looped:N, v or another "
            "that `synth solve` names, and a curve for each"
        )
    if weights != STAY:
        _check_weights(weights, placement, partition, recompute)
    if weights in (RING, GATHER):
        asked = ProblemArguments(profile, micro_batches, partition, objective)
        layout = None if word(placement) == LINEAR else placement
        candidates = WeightCandidates(read_weight_passing(weights, layout, ranks, asked))
        choice = read_recompute(recompute, candidates.problem.costs.num_stages)
        return CurveProblem(candidates.problem, choice, False, candidates)
    where = named_placement(placement, ranks)

    search_partitions = is_searched(partition)
    sizes = EVEN if search_partitions else partition
    asked = ProblemArguments(profile, micro_batches, sizes, objective)
    problem = asked.on(where, Deadline.of(time_limit).for_partitions())
    choice = read_recompute(recompute, problem.costs.num_stages)
    if search_partitions:
        check_partitions_searchable(problem, choice)
    if weights == STAY:
        return CurveProblem(problem, choice, search_partitions)
    weight_passing = read_weight_passing(weights, None, ranks, asked)
    if not weight_passing:
        raise SynthError(
            f"--weights {weights}: weights can only stay with {micro_batches} micro-batches on "
            f"{ranks} ranks; give a multiple of {ranks}, or leave --weights out"
        )
    staying = (Candidate(placement, problem, choice),)
    candidates = WeightCandidates(weight_passing, staying)
    return CurveProblem(candidates.problem, choice, False, candidates)


def _check_weights(weights: str, placement: str, partition: str, recompute: str) -> None:
    """Refuse what does not go with weight passing; with auto, pipelines have a placement."""
    refused = is_searched(partition), "a curve has one partition for each candidate; give even"
    others = {f"--partition {partition}": refused}
    if weights in (RING, GATHER):
        # Layers are refused where they are read.
        is_given = not word(recompute).startswith(("none", "layers:"))
        others[f"--recompute {recompute}"] = is_given, "a curve with it has none; give none"
    refuse_beside(f"--weights {weights}", others)
    is_default = weights == AUTO or word(placement) == LINEAR
    check_goes_with_weights(weights, None if is_default else placement, partition, recompute, {})
