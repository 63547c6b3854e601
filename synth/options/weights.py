"""Reading `--weights`, and the options that do not go with it."""

from collections.abc import Mapping
from dataclasses import replace

from synth.errors import SynthError
from synth.options.arguments.solve import SolveArguments
from synth.options.conflicts import refuse_beside
from synth.options.keywords import word
from synth.options.partition import EVEN, is_searched, read_sizes
from synth.options.problem_arguments import ProblemArguments
from synth.options.target import is_steady
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
from synth.schedule.placements import is_all_stages
from synth.solver.problem import Problem
from synth.system.messages import talk

STAY, RING, GATHER, AUTO = "stay", "ring", "gather", "auto"


def with_weights(given: SolveArguments) -> SolveArguments:
    """Fill in what weight passing decides: the placement, the partition, no recomputed stages.

    Raises:
        SynthError: an option is given that does not go with them.
    """
    if given.weights == STAY:
        return given
    if given.data_parallel > 1:
        return _with_sharded_pipelines(given)
    others = {
        f"§target {given.target}": (
            is_steady(given.target),
            "a steady state is of weights that stay; give a time or a percentage",
        ),
        "§hint": (given.hint is not None, "its search begins from the published schedules"),
        "§solver milp": (given.solver == "milp", "its model is of weights that stay"),
    }
    # With a target the pipelines beside them have one placement in one partition, as in a curve.
    names_pipelines = given.weights == AUTO and given.target is not None
    if names_pipelines and given.partition is not None:
        refused = is_searched(given.partition), "each candidate has one partition; give even"
        refuse_beside(f"§weights {AUTO}", {f"§target and §partition {given.partition}": refused})
    placement = None if names_pipelines else given.placement
    check_goes_with_weights(given.weights, placement, given.partition, given.recompute, others)
    if given.weights == AUTO:
        return given
    return given.replace(
        placement=given.placement or "all-stages:1",
        partition=given.partition or EVEN,
        recompute=given.recompute or "none",
    )


def _with_sharded_pipelines(given: SolveArguments) -> SolveArguments:
    """Fill in the partition, no recomputed stages, and all placements unless one is given.

    Raises:
        SynthError: an option is given that does not go with them.
    """
    recompute, partition = given.recompute or "none", given.partition or EVEN
    refused = {
        "§hint": (given.hint is not None, "the search begins from the published schedules"),
        "§solver milp": (given.solver == "milp", "leave it out"),
        f"§partition {partition}": (is_searched(partition), "give even or the layers of stages"),
        f"§recompute {recompute}": (
            not word(recompute).startswith(("none", "layers:")),
            "give none, or layers such as layers:0-3, which are recomputed within B",
        ),
    }
    both = f"§weights {given.weights} §data_parallel {given.data_parallel}"
    refuse_beside(both, refused, "which search the places of all-gathers")
    return given.replace(
        placement=given.placement or AUTO, partition=partition, recompute=recompute
    )


def check_goes_with_weights(
    weights: str,
    placement: str | None,
    partition: str | None,
    recompute: str | None,
    others: Mapping[str, tuple[bool, str]],
) -> None:
    """Refuse what is for weights that stay with their stages.

    Args:
        weights: `--weights` as given, but not `stay`.
        placement: as given; None: not given. So are the next two.
        others: further options that do not go with it, as `refuse_beside` takes them.

    Raises:
        SynthError: such an option is given.
    """
    refused = dict(others)
    another = "leave it out, or give all-stages:N with ring or gather"
    of_stages = "give even, or with ring or gather the layers of each stage"
    if weights == AUTO:
        why = "which searches all placements"
        refused[f"§placement {placement}"] = placement not in (None, AUTO), another
        refused[f"§partition {partition}"] = partition not in (None, AUTO, EVEN), of_stages
    else:
        why = "with which every rank runs all stages of its micro-batches"
        is_copied = placement is None or is_all_stages(word(placement))
        refused[f"§placement {placement}"] = not is_copied, another
        refused[f"§partition {partition}"] = word(partition or "") == AUTO, of_stages
        is_plain = recompute is None or word(recompute).startswith(("none", "layers:"))
        refused[f"§recompute {recompute}"] = (
            not is_plain,
            "give none, or layers such as layers:0-3, which are recomputed within B",
        )
    refuse_beside(f"§weights {weights}", refused, why)


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

    def sizes_on(where: Placement) -> str:
        """The given layers of each stage, or as many as balance the stages among themselves."""
        if not is_auto and read_sizes(asked.partition) is not None:
            return asked.partition
        return ",".join(map(str, even_stages(asked.profile, where.num_stages)))

    found, refusals = weight_passing_candidates(
        movements,
        None if is_auto else layout,
        ranks,
        len(asked.profile.layers),
        problem_on,
    )
    if not found and not is_auto:
        raise SynthError(next(iter(refusals.values())))
    for name, why in refusals.items():
        talk(f"not {name}: {why}")
    return found
