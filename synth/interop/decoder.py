"""The layers of a plan as the parts of a language model: embedding, decoder layers, head.

Other frameworks name these three kinds. A layer is known by its name: `embedding`, `embed_tokens`,
`wte` begin a model, `head`, `lm_head`, `norm` and `output` end it, and all others are decoder
layers.
"""

import re
from dataclasses import dataclass

from synth.errors import SynthError
from synth.schedule.files.plan_file import Plan

_EMBEDDING = re.compile(r"(tok_?)?(embed|embedding|embeddings|embed_tokens|wte|wpe)(\.\d+)?")
_HEAD = re.compile(r"(lm_?)?(head|output|norm|ln_f|loss)(\.\d+)?")


@dataclass(frozen=True)
class StageParts:
    """The parts of one stage: the numbers of its decoder layers, and whether it has an end."""

    has_embedding: bool
    decoder_layers: range
    has_head: bool


def stage_parts(plan: Plan) -> tuple[StageParts, ...]:
    """Return the parts of each stage.

    A model without a layer for its embedding or for its head has it on its first or last stage.

    Raises:
        SynthError: an embedding after a decoder layer, or a head before one.
    """
    kinds = [_kind(name) for name in plan.layers]
    wrong = next((i for i in range(1, len(kinds)) if kinds[i] < kinds[i - 1]), None)
    if wrong is not None:
        raise SynthError(
            f"layer {plan.layers[wrong]!r} comes after {plan.layers[wrong - 1]!r}; the format is "
            f"for models of an embedding, decoder layers and a head, in this order"
        )
    found, next_decoder = [], 0
    last = len(plan.partition) - 1
    for stage in range(len(plan.partition)):
        held = [kinds[i] for i in plan.layers_of(stage)]
        end = next_decoder + held.count(1)
        found.append(StageParts(stage == 0, range(next_decoder, end), stage == last))
        _check_ends(plan, stage, held)
        next_decoder = end
    return tuple(found)


def _kind(name: str) -> int:
    """Return 0 for an embedding, 1 for a decoder layer, 2 for a head."""
    if _EMBEDDING.fullmatch(name.lower()):
        return 0
    return 2 if _HEAD.fullmatch(name.lower()) else 1


def _check_ends(plan: Plan, stage: int, held: list[int]) -> None:
    """Raise SynthError if a middle stage holds a part of the embedding or of the head."""
    if (stage > 0 and 0 in held) or (stage < len(plan.partition) - 1 and 2 in held):
        raise SynthError(
            f"stage {stage} holds a part of the model's embedding or head that is not on its first "
            f"or last stage; give a --partition that keeps these parts together"
        )


def is_looped(plan: Plan) -> bool:
    """Return True if stage s is on rank s mod P."""
    return plan.placement[0] == tuple(s % plan.num_ranks for s in range(len(plan.partition)))


def is_v_shaped(plan: Plan) -> bool:
    """Return True if two stages per rank go down the ranks and up again."""
    down = tuple(range(plan.num_ranks))
    return plan.placement[0] == down + down[::-1]
