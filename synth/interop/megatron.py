"""Megatron-LM's `--pipeline-model-parallel-layout`: the partition of a plan as a string.

`E` is the embedding, `t` a decoder layer, `m` a layer of multi-token prediction, `L` the loss with
the head, `|` ends a stage, and `t*3` and `(tt|)*4` repeat (Megatron Core, custom pipeline model
parallel layout). Stages are counted over the ranks first, as in interleaved schedules. Megatron
runs its own 1F1B; the order of ops is no part of the layout.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from synth.errors import SynthError
from synth.interop.expressible import check_expressible
from synth.interop.model_parts import is_looped, targets
from synth.profile.model_parts import ModelPart
from synth.schedule.files.plan_file import Plan
from synth.units import shown

_LETTERS = dict(zip(ModelPart, "EtmL", strict=True))

# Options with which F of one micro-batch and BW of another one run at once (Megatron Core 0.14).
PAIRS_OPTIONS = "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"

# Layers of a kind up to which a stage is spelled out.
_FEW = 2


def to_megatron(plan: Plan, layers: Mapping[str, str] | None = None) -> str:
    """Write the layout of a plan.

    Args:
        plan: a plan for a model of an embedding, decoder layers, layers of multi-token prediction,
            if any, and a head.
        layers: the letters of layers that are not known by their names, as in `targets`.

    Raises:
        SynthError: the layers are others, the placement is not that of an interleaved schedule, or
            `check_expressible` refuses the schedule.
    """
    check_expressible(plan.schedule(), "Megatron-LM")
    if not is_looped(plan):
        raise SynthError(
            f"Megatron-LM places stage s on rank s mod P, and {plan.name!r} does not; solve for "
            f"--placement linear or looped:N"
        )
    given = layers or {}
    for name, letter in given.items():
        if letter not in _LETTERS.values():
            raise SynthError(
                f"--layer {name}={shown(letter)} is no letter of Megatron-LM's layouts; give "
                f"{', '.join(_LETTERS.values())} (embedding, decoder layer, multi-token "
                f"prediction, head)"
            )
    found = targets(plan, _LETTERS, given, "Megatron-LM")
    held = [[found[i].name for i in plan.layers_of(s)] for s in range(len(plan.partition))]
    _check_mtp(plan, held)
    stages = [_repeated("t", letters) + _repeated("m", letters) for letters in held]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    pieces = []
    for stage, run in groupby(stages[:-1]):
        count = len(list(run))
        pieces.append(f"({stage}|)*{count}" if count > 1 else f"{stage}|")
    return "".join((*pieces, stages[-1]))


def _repeated(letter: str, held: Sequence[str]) -> str:
    """Return the layers of a kind in a stage: `t*3`, `tt`."""
    count = held.count(letter)
    return f"{letter}*{count}" if count > _FEW else letter * count


def megatron_parts(plan: Plan, given: Mapping[str, str]) -> list[ModelPart | None]:
    """Return what Megatron-LM takes the layers of a plan for.

    The arguments and errors are those of `targets`.
    """
    return [target.part for target in targets(plan, _LETTERS, given, "Megatron-LM")]


def _check_mtp(plan: Plan, held: Sequence[Sequence[str]]) -> None:
    """Check where layers of multi-token prediction are, as `validate_layer_layout` does.

    Raises:
        SynthError: they are on several stages, or on a stage that is not the last one of its rank.
    """
    stages = [stage for stage, letters in enumerate(held) if "m" in letters]
    if len(stages) > 1 or any(stage < len(held) - plan.num_ranks for stage in stages):
        raise SynthError(
            f"the layers of multi-token prediction are on stages {', '.join(map(str, stages))}, "
            f"and Megatron-LM has all of them on one, the last one of its rank; give a --partition "
            f"that does"
        )
