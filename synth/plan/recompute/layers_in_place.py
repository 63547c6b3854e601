"""Stages that cannot be recomputed by R, as layers change in place what the first one takes."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.solver.problem import Problem

_WAY_OUT = (
    "so that nothing can be computed again from {}: let the layer change a copy (`x = x.clone()`) "
    "and profile again"
)
IN_PLACE = f"changes its input in place, or one after it does, {_WAY_OUT.format('it')}"
TARGETS_IN_PLACE = f"changes the targets in place, {_WAY_OUT.format('them')}"


def layers_in_place(profile: Profile) -> dict[int, str]:
    """Return the names of the layers that cannot be computed again, by their places.

    A layer after one of them may be the one that changes what it takes. The number of layers stands
    for the targets: the name is that of the last layer, which changes them.
    """
    names = [layer.name for layer in profile.layers]
    found = {
        place: name
        for place, name in enumerate(names)
        if place in profile.changed_inputs or not profile.layer_profile(place).can_be_recomputed
    }
    return found | ({len(names): names[-1]} if len(names) in profile.changed_inputs else {})


def ops_allowed_by(profile: Profile, further_ops: frozenset[OpKind]) -> frozenset[OpKind]:
    """Return the kinds of op that a search may add: without R if it is not known where R may be.

    Profiles before version 11 do not say what a layer changes, nor which tensors are views of what
    one before has taken. One layer that cannot be computed again is then enough.
    """
    each = {layer.profile: profile.layer_profiles[layer.profile] for layer in profile.layers}
    is_known = all(
        layer.can_be_recomputed or (layer.tensors is not None and layer.tensors.changes_input)
        for layer in each.values()
    )
    return further_ops if is_known else further_ops - {OpKind.R}


def stages_in_place(
    profile: Profile, sizes: Sequence[int], stages: Iterable[int]
) -> dict[int, str]:
    """Return those of some stages that cannot be recomputed, with the layer and the reason.

    They begin with such a layer, or the last layer changes the targets.

    Args:
        sizes: the number of layers of each stage.
        stages: to be recomputed; of further ones, as of a divided vocabulary, nothing is known.
    """
    names, begins, count = layers_in_place(profile), [0, *accumulate(sizes)], len(profile.layers)
    found = {}
    for stage in stages:
        if stage == len(sizes) - 1 and count in names:
            found[stage] = f"last layer, {names[count]}, {TARGETS_IN_PLACE}"
        elif stage < len(sizes) and begins[stage] in names:
            found[stage] = f"first layer, {names[begins[stage]]}, {IN_PLACE}"
    return found


def check_stages(problem: Problem, choice: Collection[int] | None, profile: Profile) -> None:
    """Check that no stage to be recomputed has what it takes, or the targets, changed in place.

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
        stage, reason = next(iter(refused.items()))
        raise SynthError(
            f"§recompute would rebuild stage {stage}, whose {reason}, or give "
            f"{f'stages {others} alone, or ' if others else ''}auto"
        )
