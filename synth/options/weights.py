"""Reading `--weights`, and the options that do not go with it."""

from dataclasses import replace
from typing import TYPE_CHECKING

from synth.errors import SynthError
from synth.messages import talk
from synth.options.conflicts import refuse_beside
from synth.options.keywords import word
from synth.options.partition import EVEN, read_sizes
from synth.units import shown

if TYPE_CHECKING:
    from synth.options.problem_arguments import ProblemArguments
    from synth.options.solve_arguments import SolveArguments
    from synth.plan.weights.choice import TravelCandidate
    from synth.schedule.model import Placement
    from synth.solver.problem import Problem

STAY, AUTO = "stay", "auto"
CHOICES = (STAY, "ring", "gather", AUTO)


def with_weights(given: "SolveArguments") -> "SolveArguments":
    """Fill in what weights that travel decide: the placement, the partition, no recomputed stages.

    Raises:
        SynthError: an option is given that does not go with them.
    """
    if given.weights == STAY:
        return given
    _check(given)
    if given.weights == AUTO:
        return given
    return replace(
        given,
        placement=given.placement or "replicated:1",
        partition=given.partition or EVEN,
        recompute=given.recompute or "none",
    )


def _check(given: "SolveArguments") -> None:
    """Refuse what is for weights that stay with their stages."""
    if given.weights not in CHOICES:
        raise SynthError(
            f"--weights {shown(given.weights)} is not understood; give {', '.join(CHOICES)}"
        )
    refused = {
        "--target": (
            given.target is not None,
            "the least memory is searched for weights that stay; give a --mem-limit",
        ),
        "--hint": (given.hint is not None, "its search begins from the published schedules"),
        "--solver milp": (given.solver == "milp", "its model is of weights that stay"),
    }
    placement, partition = f"--placement {given.placement}", f"--partition {given.partition}"
    another = "leave it out, or give replicated:N with ring or gather"
    of_stages = "give even, or with ring or gather the layers of each stage"
    if given.weights == AUTO:
        why = "which searches all placements"
        refused[placement] = given.placement not in (None, AUTO), another
        refused[partition] = given.partition not in (None, AUTO, EVEN), of_stages
    else:
        why = "with which every rank runs all stages of its micro-batches"
        is_copied = given.placement is None or word(given.placement).startswith("replicated")
        refused[placement] = not is_copied, another
        refused[partition] = word(given.partition or "") == AUTO, of_stages
        is_plain = given.recompute is None or word(given.recompute).startswith(("none", "layers:"))
        refused[f"--recompute {given.recompute}"] = (
            not is_plain,
            "give none, or layers such as layers:0-3, which are recomputed within B",
        )
    refuse_beside(f"--weights {given.weights}", refused, why)


def read_travelling(
    given: "SolveArguments", asked: "ProblemArguments"
) -> "tuple[TravelCandidate, ...]":
    """Return the candidates whose weights travel; none if they stay.

    Args:
        given: the options as given; without a placement there is a choice of stages per rank.
        asked: makes the problem of a candidate.

    Raises:
        SynthError: there is none although weights shall travel; with auto they may stay.
    """
    from synth.plan.weights.choice import WeightChoice, even_stages, travel_candidates

    movements = WeightChoice(given.weights).movements
    if not movements:
        return ()
    is_auto = given.weights == AUTO

    def problem_on(where: "Placement") -> "Problem":
        return replace(asked, partition=sizes_on(where)).on(where)

    def sizes_on(where: "Placement") -> str:
        """The given layers of each stage, or as many as balance the stages among themselves."""
        if not is_auto and read_sizes(asked.partition) is not None:
            return asked.partition
        return ",".join(map(str, even_stages(asked.profile, where.num_stages)))

    found, refusals = travel_candidates(
        movements,
        None if is_auto else given.placement,
        given.ranks,
        len(asked.profile.layers),
        problem_on,
    )
    if not found and not is_auto:
        raise SynthError(next(iter(refusals.values())))
    for name, why in refusals.items():
        talk(f"not {name}: {why}")
    return found
