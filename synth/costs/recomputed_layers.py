"""Layers that B recomputes: the costs of a layer whose F keeps only its input, or a part.

The forward runs again inside B (or BW) of the stage, layer by layer, right before the layer's own
backward. So a recomputed layer is a layer with other costs, and no op is added to the schedule:

    F    keeps the layer's input alone
    B    forward again, then B:  |— forward —|—— B ——|    the rise is that of both
    W    as before

Under a policy F keeps some of the layer's own tensors, too, and B computes the others again
(Korthikanti et al. 2022, arXiv 2205.05198, section 5). These costs are measured (`LayerVariant`).
"""

import fnmatch
from collections.abc import Collection, Iterable

from synth.costs.recomputation import FULL, Recomputation
from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import LayerProfile, smaller_rises
from synth.units import shown

_BACKWARDS = (OpKind.B, OpKind.BW)


def recomputing(profile: Profile, layers: Collection[int]) -> Profile:
    """Return the profile with some layers recomputed, by their places in the model's list.

    Layers that were profiled as recomputed stay as they are.

    Args:
        profile: the measured costs.
        layers: the places; of a `Recomputation` each under its policy, else whole.

    Raises:
        SynthError: there is no layer at one of the places, or its policy was not measured.
    """
    check_layers(profile, layers)
    chosen = {
        index: policy
        for index, policy in Recomputation(layers).items()
        if not is_recomputed_already(profile, index)
    }
    if not chosen:
        return profile
    kinds = [(profile.layers[index].profile, policy) for index, policy in chosen.items()]
    names = {kind: _new_name(profile, *kind) for kind in dict.fromkeys(kinds)}
    changed = {
        new: recomputed(profile.layer_profiles[name], policy, name)
        for (name, policy), new in names.items()
    }
    listed = tuple(
        layer.replace(profile=names[layer.profile, chosen[index]]) if index in chosen else layer
        for index, layer in enumerate(profile.layers)
    )
    return profile.replace(layer_profiles={**profile.layer_profiles, **changed}, layers=listed)


def check_layers(profile: Profile, layers: Iterable[int]) -> None:
    """Refuse places at which there is no layer."""
    count = len(profile.layers)
    for index in layers:
        if not 0 <= index < count:
            raise SynthError(
                f"layer {index} is to be recomputed; the profile has layers 0 to {count - 1}"
            )


def is_recomputed_already(profile: Profile, index: int) -> bool:
    """True if the layer was profiled as recomputed, so that its costs say so."""
    patterns = profile.workload.recomputed_layers or ()
    name = profile.layers[index].name
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def policies_of(profile: Profile, index: int) -> tuple[str, ...]:
    """Return the policies under which a layer can be recomputed; none if it is already."""
    if is_recomputed_already(profile, index):
        return ()
    if index in profile.changed_inputs:
        return ()
    layer = profile.layer_profile(index)
    return (*[FULL] * layer.can_be_recomputed, *layer.variants)


def recomputed(layer: LayerProfile, policy: str = FULL, name: str = "a layer") -> LayerProfile:
    """Return the costs of a layer that is recomputed right before its own backward.

    Args:
        layer: the layer that keeps everything.
        policy: `FULL`, or one of its variants.
        name: what an error calls it.

    Raises:
        SynthError: it was not measured under the policy.
    """
    if policy == FULL:
        return _recomputed_whole(layer)
    if policy not in layer.variants:
        measured = ", ".join((FULL, *layer.variants))
        raise SynthError(
            f"{name} was not measured under the policy {shown(policy)}; it has {measured}: profile "
            f"with --recompute-policy {policy}"
        )
    return layer.under(policy)


def _recomputed_whole(layer: LayerProfile) -> LayerProfile:
    """Return the costs of a layer whose F keeps its input, and what cannot be recomputed.

    An output that the layer itself saved is rebuilt, and W may hold the rebuilt one. The rise of F
    is at most that with saving.
    """
    tensors = layer.boundary_tensors
    again_bytes = tensors.made_until(OpKind.B, OpKind.W)
    kept_for_w = tensors.made_until(OpKind.W)
    again = layer.time_us.get(OpKind.R, layer.time_us[OpKind.F])
    times, rises = dict(layer.time_us), dict(layer.rise_bytes)
    rebuilt_bytes, inner = layer.saved_bytes + again_bytes, {}
    for kind in _BACKWARDS:
        times[kind] = again.followed_by(times[kind])
        rises[kind] = max(layer.recompute_rise_bytes, rebuilt_bytes + layer.rise_bytes[kind])
        inner[kind] = max(layer.recompute_rise_bytes, rebuilt_bytes + layer.inner_rise(kind))
    return layer.replace(
        time_us=times,
        rise_bytes=rises,
        inner_rise_bytes=smaller_rises(inner, rises),
        saved_bytes=layer.recompute_saved_bytes,
        recompute_saved_bytes=0,
        saved_w_bytes=layer.saved_w_bytes + kept_for_w,
        input_until=max(layer.input_until, OpKind.B, key=lambda kind: kind.rank_in_chain),
        output_until=OpKind.F,
        tensors=layer.tensors and tensors.recomputed(),
        variants={},
        pair_us=None,
    )


def _new_name(profile: Profile, name: str, policy: str) -> str:
    new = f"{name} (recomputed)" if policy == FULL else f"{name} (recomputed: {policy})"
    while new in profile.layer_profiles:
        new += "'"
    return new
