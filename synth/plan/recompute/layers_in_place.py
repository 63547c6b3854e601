"""Stages that cannot be recomputed by R, as their first layer changes its input in place."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.solver.problem import Problem

IN_PLACE = (
    "changes its input in place, so that nothing can be computed again from it: let the layer "
    "change a copy (`x = x.clone()`) and profile again"
)


def layers_in_place(profile: Profile) -> dict[int, str]:
    """Return the names of the layers that change their input in place, by their places."""
    return {
        place: layer.name
        for place, layer in enumerate(profile.layers)
        if not profile.layer_profile(place).can_be_recomputed
    }


def ops_allowed_by(profile: Profile, further_ops: frozenset[OpKind]) -> frozenset[OpKind]:
    """Return the kinds of op that a search may add: without R if a layer works in place.

    One such layer is enough: searches choose partitions, and layers before it may return a view.
    """
    return further_ops - {OpKind.R} if layers_in_place(profile) else further_ops


def stages_in_place(
    profile: Profile, sizes: Sequence[int], stages: Iterable[int]
) -> dict[int, str]:
    """Return those of some stages that begin with such a layer, with the name of that layer.

    Args:
        sizes: the number of layers of each stage.
        stages: to be recomputed; of further ones, as of a divided vocabulary, nothing is known.
    """
    names = layers_in_place(profile)
    begins = [0, *accumulate(sizes)]
    return {
        stage: names[begins[stage]]
        for stage in stages
        if stage < len(sizes) and begins[stage] in names
    }


def check_stages(problem: Problem, choice: Collection[int] | None, profile: Profile) -> None:
    """Check that no stage to be recomputed begins with a layer that changes its input in place.

    Args:
        problem: its partition says where stages begin.
        choice: the stages; None: the search chooses them.
        profile: of the layers.

    Raises:
        SynthError: one does.
    """
    refused = stages_in_place(profile, problem.partition or (), choice or ())
    if refused:
        others = ",".join(str(stage) for stage in choice or () if stage not in refused)
        stage, name = next(iter(refused.items()))
        raise SynthError(
            f"§recompute would rebuild stage {stage}, whose first layer, {name}, {IN_PLACE}, or "
            f"give {f'stages {others} alone, or ' if others else ''}auto"
        )
