"""The layers of a plan as the parts of a language model, known by their names.

Other frameworks name embedding, decoder layers, layers of multi-token prediction (MTP) and head. A
name that is none of them for certain is not guessed: the user says what the framework calls it.
"""

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

from synth.errors import SynthError
from synth.schedule.files.plan_file import Plan
from synth.units import shown


class ModelPart(IntEnum):
    """A part of a language model, in forward order."""

    EMBEDDING = 0
    DECODER = 1
    MTP = 2
    HEAD = 3


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_EMBEDDING = _listed("embed embedding embeddings wte wpe")
_HEAD = _listed("head output norm ln loss logits layernorm unembed unembedding")
_DECODER = _listed("block blocks layer layers decoder transformer moe dense h")
_MTP = _listed("mtp nextn")

# Words of layers that are no whole decoder layer, or of a model beside the decoder.
_OTHER = _listed(
    "encoder enc projector proj adapter connector resampler vision visual vit image audio speech "
    "video patch time timestep pooler router expert experts attention attn mlp ffn linear conv "
    "mamba ssm double single down up mid"
)

# "RMSNorm" is the words rms and norm, "lm_head" lm and head.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBER = re.compile(r"[._-]?\d+$")


def base_of(name: str) -> str:
    """Return the name of a layer without its number: `block` of `block.3`."""
    return _NUMBER.sub("", name)


class Target(NamedTuple):
    """A framework's name of a layer, and the part of the model that it is; None: not known."""

    name: str
    part: ModelPart | None


def targets(
    plan: Plan, known: Mapping[ModelPart, str], given: Mapping[str, str], framework: str
) -> list[Target]:
    """Return what a framework calls each layer of a plan.

    Args:
        plan: its layers are known by their names.
        known: the framework's names of the parts that it has.
        given: its names of layers, by the names of the layers, with or without their number.
        framework: its name, for messages.

    Raises:
        SynthError: a layer is none of these parts; one is out of order; the embedding is not on the
            first stage, or the head not on the last one; no layer has a given name.
    """
    names = {name for layer in plan.layers for name in (layer, base_of(layer))}
    unused = next((name for name in given if name not in names), None)
    if unused is not None:
        there = ", ".join(dict.fromkeys(map(base_of, plan.layers)))
        raise SynthError(f"--layer {shown(unused)}: the plan has no such layer, only {there}")
    is_one_class = len({base_of(name) for name in plan.layers if _is_decoder(name)}) == 1
    by_name = {name: part for part, name in known.items()}
    found = []
    for layer in plan.layers:
        part = _part(layer, is_one_class)
        name = given.get(layer, given.get(base_of(layer)))
        if name is not None:
            part = by_name.get(name, part)
        elif part is not None and part in known:
            name = known[part]
        else:
            raise SynthError(_unknown(layer, known, framework))
        found.append(Target(name, part))
    _check_order(plan, found, framework)
    _check_ends(plan, found)
    return found


def _check_order(plan: Plan, found: Sequence[Target], framework: str) -> None:
    """Raise SynthError if a part comes after one that it should precede."""
    parts = [(target.part, layer) for target, layer in zip(found, plan.layers, strict=True)]
    placed = [(part, layer) for part, layer in parts if part is not None]
    for (part, layer), (behind, next_layer) in pairwise(placed):
        if behind < part:
            raise SynthError(
                f"layer {next_layer!r} comes after {layer!r}; {framework} is for models of an "
                f"embedding, decoder layers and a head, in this order"
            )


def _check_ends(plan: Plan, found: Sequence[Target]) -> None:
    """Raise SynthError if a middle stage holds a part of the embedding or of the head."""
    last = len(plan.partition) - 1
    for stage in range(last + 1):
        held = [found[layer].part for layer in plan.layers_of(stage)]
        if (stage > 0 and ModelPart.EMBEDDING in held) or (stage < last and ModelPart.HEAD in held):
            raise SynthError(
                f"stage {stage} holds a part of the model's embedding or head that is not on its "
                f"first or last stage; give a --partition that keeps these parts together"
            )


def _part(name: str, is_one_class: bool) -> ModelPart | None:
    """Return the part that a name stands for; None: it is not known."""
    words = _words(name)
    if not words or not _OTHER.isdisjoint(words):
        return None
    if not _MTP.isdisjoint(words) or "multitokenprediction" in "".join(words):
        return ModelPart.MTP if (_EMBEDDING | _HEAD).isdisjoint(words) else None
    if _is_decoder(name):
        return ModelPart.DECODER if is_one_class or _DECODER.issuperset(words) else None
    ends_as = words[:-1] if words[-1] == "layer" else words
    if not _EMBEDDING.isdisjoint(ends_as):
        return None if "decoder" in words else ModelPart.EMBEDDING
    return None if _HEAD.isdisjoint(ends_as[-2:]) else ModelPart.HEAD


def _is_decoder(name: str) -> bool:
    words = _words(name)
    apart = _OTHER | _EMBEDDING | _HEAD | _MTP
    return bool(words) and words[-1] in _DECODER and apart.isdisjoint(words)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(base_of(name))]


def _unknown(layer: str, known: Mapping[ModelPart, str], framework: str) -> str:
    parts = ", ".join(f"{part.name.lower()} ({name})" for part, name in known.items())
    return (
        f"layer {shown(layer)} is not known as a part that {framework} has: {parts}; say what it "
        f"is there, such as --layer '{base_of(layer)}={known[ModelPart.DECODER]}' if it is a "
        f"decoder layer"
    )


def is_looped(plan: Plan) -> bool:
    """Return True if stage s is on rank s mod P."""
    return plan.placement[0] == tuple(s % plan.num_ranks for s in range(len(plan.partition)))


def is_v_shaped(plan: Plan) -> bool:
    """Return True if two stages per rank go down the ranks and up again."""
    down = tuple(range(plan.num_ranks))
    return plan.placement[0] == down + down[::-1]
