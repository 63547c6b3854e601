"""The profile of a model whose embedding and head are divided by vocabulary over all ranks.

Vocabulary parallelism (Yeung et al. 2024, arXiv 2411.05288): each of p ranks has a p-th of the
parameters of both, and does a p-th of their work for every micro-batch. Parts are layers here:

    embedding, block.0, …, head  →  embedding.part.0, …, block.0, …, head.part.0, …

The part of the head runs in two passes, S and T. With two barriers (algorithm 1) S is the forward,
and T the backward, after the maximum and the sum of the softmax are known. With one (algorithm 2) S
also multiplies by the weights what it knows, from which the gradient of the input follows, so that
T is the gradient of the weights alone.
"""

from math import ceil
from typing import Any

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import Layer, LayerProfile, Timing
from synth.profile.model_parts import ModelPart, model_parts

# The maximum and the sum of exponentials of a token, in float32.
_SOFTMAX_BYTES = 8


def divided_vocabulary(profile: Profile, num_ranks: int, barriers: int) -> Profile:
    """Return the profile with its first and its last layer as parts, one for each rank.

    Args:
        profile: of a model that begins with an embedding and ends with a head.
        num_ranks: the number of parts of each.
        barriers: 1 or 2.

    Raises:
        SynthError: there is no such embedding or head, they are tied, or there are fewer layers
            between them than ranks.
    """
    _check(profile, num_ranks)
    (first, *inner, last), kinds = profile.layers, dict(profile.layer_profiles)
    embedding, head = kinds[first.profile], kinds[last.profile]
    passed = kinds[inner[-1].profile].output_bytes
    new = {
        f"{first.profile} part": embedding.replace(**_shares(embedding, num_ranks)),
        f"{inner[0].profile} of the sum": _with_input(
            kinds[inner[0].profile], embedding.output_bytes
        ),
        f"{last.profile} part": _head_part(
            head, num_ranks, barriers, passed, _softmax_bytes(profile)
        ),
    }
    of_embedding, of_first, of_head = new
    layers = (
        *(_part(first, of_embedding, k) for k in range(num_ranks)),
        inner[0].replace(profile=of_first),
        *inner[1:],
        *(_part(last, of_head, k) for k in range(num_ranks)),
    )
    used = {layer.profile for layer in layers}
    known = {name: layer for name, layer in (kinds | new).items() if name in used}
    return profile.replace(layers=layers, layer_profiles=known)


def _check(profile: Profile, num_ranks: int) -> None:
    names = [layer.name for layer in profile.layers]
    parts = model_parts(names)
    if len(names) < 3 or (parts[0], parts[-1]) != (ModelPart.EMBEDDING, ModelPart.HEAD):
        raise SynthError(
            f"a vocabulary is divided where a model begins with an embedding and ends with a head; "
            f"{profile.name} has layers {names[0]}, …, {names[-1]}"
        )
    if profile.tied_parameters:
        raise SynthError(
            f"embedding and head of {profile.name} share parameters; divide the vocabulary of a "
            f"model in which they do not"
        )
    if len(names) - 2 < num_ranks:
        raise SynthError(
            f"{profile.name} has {len(names) - 2} layers between embedding and head, fewer than "
            f"{num_ranks} ranks; give fewer ranks"
        )


def _part(layer: Layer, kind: str, number: int) -> Layer:
    return layer.replace(name=f"{layer.name}.part.{number}", profile=kind)


def _softmax_bytes(profile: Profile) -> int:
    """The bytes that a rank hands on for the softmax of a micro-batch."""
    return _SOFTMAX_BYTES * profile.workload.tokens


def _with_input(layer: LayerProfile, input_bytes: int) -> LayerProfile:
    """The first layer behind the embedding, which keeps the sum of its parts itself if it reads
    its input later: parts are freed when they are added up."""
    if layer.input_until == OpKind.F:
        return layer
    for_w = input_bytes if layer.input_until == OpKind.W else 0
    rises = layer.rise_bytes
    return layer.replace(
        rise_bytes={**rises, OpKind.F: rises[OpKind.F] + input_bytes},
        input_until=OpKind.F,
        saved_bytes=layer.saved_bytes + input_bytes,
        saved_w_bytes=layer.saved_w_bytes + for_w,
        recompute_saved_bytes=layer.recompute_saved_bytes + input_bytes,
        tensors=None,
        variants={},
    )


def _head_part(
    layer: LayerProfile, num_ranks: int, barriers: int, passed_bytes: int, softmax_bytes: int
) -> LayerProfile:
    """A part of the head: F is S, and BW is T."""
    times, shares = _times(layer, num_ranks), _shares(layer, num_ranks)
    rises = {kind: ceil(rise / num_ranks) for kind, rise in layer.rise_bytes.items()}
    made_in = OpKind.F if barriers == 1 else OpKind.BW
    if barriers == 1:
        times[OpKind.F] = times[OpKind.F].followed_by(times[OpKind.B])
        times[OpKind.BW] = times[OpKind.W]
        rises[OpKind.F] = max(rises[OpKind.F], rises[OpKind.B])
        rises[OpKind.BW] = rises[OpKind.W]
    rises[made_in] += passed_bytes
    output_bytes, gradient_bytes = passed_bytes, softmax_bytes
    if barriers == 2:
        output_bytes, gradient_bytes = softmax_bytes, passed_bytes
    return layer.replace(
        **shares
        | {
            "time_us": times,
            "rise_bytes": rises,
            "inner_rise_bytes": {},
            "saved_bytes": ceil(layer.saved_bytes / num_ranks),
            "saved_w_bytes": ceil(layer.saved_w_bytes / num_ranks),
            "output_bytes": output_bytes,
            "output_gradient_bytes": gradient_bytes,
            "input_until": OpKind.B,
            "output_until": OpKind.F,
            "gradient_until": OpKind.B,
        }
    )


def _shares(layer: LayerProfile, num_ranks: int) -> dict[str, Any]:
    """The parameters, times and operations of a part, which is never recomputed."""
    flops = layer.forward_flops
    return {
        "time_us": _times(layer, num_ranks),
        "parameter_bytes": ceil(layer.parameter_bytes / num_ranks),
        "gradient_bytes": ceil(layer.gradient_bytes / num_ranks),
        "optimizer_bytes": ceil(layer.optimizer_bytes / num_ranks),
        "forward_flops": None if flops is None else ceil(flops / num_ranks),
        "tensors": None,
        "variants": {},
        "pair_us": None,
        "reduce_us": layer.reduce_us / num_ranks,
    }


def _times(layer: LayerProfile, num_ranks: int) -> dict[OpKind, Timing]:
    return {kind: timing.divided(num_ranks) for kind, timing in layer.time_us.items()}
