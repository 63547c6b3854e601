"""Megatron-LM's `--pipeline-model-parallel-layout`: the partition of a plan as a string.

`E` is the embedding, `t` a decoder layer, `L` the loss with the head, `|` ends a stage, and `t*3`
and `(tt|)*4` repeat (Megatron Core, custom pipeline model parallel layout). Stages are counted
over the ranks first, as in interleaved schedules. Megatron runs its own 1F1B; the order of ops is
no part of the layout.
"""

from itertools import groupby

from synth.errors import SynthError
from synth.interop.decoder import StageParts, is_looped, stage_parts
from synth.interop.expressible import check_expressible
from synth.schedule.files.plan_file import Plan

# Layers up to which a stage is spelled out.
_FEW = 2


def to_megatron(plan: Plan) -> str:
    """Write the layout of a plan.

    Raises:
        SynthError: the layers are no embedding, decoder layers and head, the placement is not that
            of an interleaved schedule, or `check_expressible` refuses the schedule.
    """
    check_expressible(plan.schedule(), "Megatron-LM")
    if not is_looped(plan):
        raise SynthError(
            f"Megatron-LM places stage s on rank s mod P, and {plan.name!r} does not; solve for "
            f"--placement linear or looped:N"
        )
    stages = [_stage(part) for part in stage_parts(plan)]
    pieces = []
    for stage, run in groupby(stages[:-1]):
        count = len(list(run))
        pieces.append(f"({stage}|)*{count}" if count > 1 else f"{stage}|")
    return "".join((*pieces, stages[-1]))


def _stage(part: StageParts) -> str:
    """Return one stage: `Et*3`, `tt`, `tL`."""
    count = len(part.decoder_layers)
    layers = f"t*{count}" if count > _FEW else "t" * count
    return f"{'E' * part.has_embedding}{layers}{'L' * part.has_head}"
