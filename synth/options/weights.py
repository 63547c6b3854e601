"""The candidates of `--weights`."""

from dataclasses import replace

from synth.errors import SynthError
from synth.options.arguments.solve import SolveArguments
from synth.options.conflicts import STAY, check_sharded_pipelines, check_weights
from synth.options.values import AUTO, EVEN, NONE, Partition, word
from synth.plan.problem_arguments import ProblemArguments
from synth.plan.weight_passing.choice import (
    WeightChoice,
    WeightPassingCandidate,
    even_stages,
    weight_passing_candidates,
)
from synth.plan.weight_passing.data_parallel_plan import problem_of_all
from synth.plan.weight_passing.sharded_candidates import ShardedCandidate, sharded_candidates
from synth.profile import Profile
from synth.schedule.model import Placement
from synth.solver.problem import Problem
from synth.system.messages import talk


def with_weights(given: SolveArguments) -> SolveArguments:
    """Fill in what weight passing decides: the placement, the partition, no recomputed stages.

    Raises:
        SynthError: an option is given that does not go with them.
    """
    if given.weights == STAY:
        return given
    if given.data_parallel > 1:
        return _with_sharded_pipelines(given)
    check_weights(given)
    if given.weights == AUTO:
        return given
    return given.replace(
        placement=given.placement or "all-stages:1",
        partition=given.partition or EVEN,
        recompute=given.recompute or NONE,
    )


def _with_sharded_pipelines(given: SolveArguments) -> SolveArguments:
    """Fill in the partition, no recomputed stages, and all placements unless one is given.

    Raises:
        SynthError: an option is given that does not go with them.
    """
    check_sharded_pipelines(given)
    return given.replace(
        placement=given.placement or AUTO,
        partition=given.partition or EVEN,
        recompute=given.recompute or NONE,
    )


def read_sharded_pipelines(
    placement: str | None, ranks: int, asked: ProblemArguments, profile: Profile
) -> tuple[ShardedCandidate, ...]:
    """Return the placements of data-parallel pipelines whose state may be sharded.

    Args:
        placement: `--placement` as given; without one or with auto the usual ones are tried.
        ranks: the ranks of one pipeline.
        asked: makes the problem of one pipeline.
        profile: the profile of the layers, none of which recomputes yet.

    Raises:
        SynthError: no placement is possible.
    """

    def problem_on(where: Placement) -> Problem:
        return problem_of_all(asked.on(where), profile, asked.num_pipelines)

    layout = None if placement is None or word(placement) == AUTO else placement
    found, refusals = sharded_candidates(layout, ranks, problem_on)
    if not found:
        raise SynthError(next(iter(refusals.values())))
    for name, why in refusals.items():
        talk(f"not {name}: {why}")
    return found


def read_weight_passing(
    weights: str, layout: str | None, ranks: int, asked: ProblemArguments
) -> tuple[WeightPassingCandidate, ...]:
    """Return the candidates with weight passing; none without it.

    Args:
        weights: `--weights` as given.
        layout: `--placement` as given; without it there is a choice of stages per rank.
        ranks: number of ranks.
        asked: makes the problem of a candidate.

    Raises:
        SynthError: `weights` asks for weight passing, and none is possible; with auto there may be
            none.
    """
    movements = WeightChoice(weights).movements
    if not movements:
        return ()
    is_auto = weights == AUTO

    def problem_on(where: Placement) -> Problem:
        return replace(asked, partition=sizes_on(where)).on(where)

    def sizes_on(where: Placement) -> Partition:
        """The given layers of each stage, or as many as balance the stages among themselves."""
        if not is_auto and not isinstance(asked.partition, str):
            return asked.partition
        return even_stages(asked.profile, where.num_stages)

    found, refusals = weight_passing_candidates(
        movements, None if is_auto else layout, ranks, len(asked.profile.layers), problem_on
    )
    if not found and not is_auto:
        raise SynthError(next(iter(refusals.values())))
    for name, why in refusals.items():
        talk(f"not {name}: {why}")
    return found
