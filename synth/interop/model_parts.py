"""The layers of a plan as the parts of a language model, known by their names.

Other frameworks name embedding, decoder layers, layers of multi-token prediction (MTP) and head. A
name that is none of them for certain is not guessed: the user says what the framework calls it.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from synth.errors import SynthError
from synth.profile.model_parts import ModelPart, base_of, model_parts
from synth.schedule.files.plan_file import Plan
from synth.units import shown


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
    by_name = {name: part for part, name in known.items()}
    found = []
    for layer, part in zip(plan.layers, model_parts(plan.layers), strict=True):
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
