"""Two pipelines in opposite directions without a collision: what Chimera and BitPipe share.

With S stages in each copy and F = B = 1, micro-batch j of its copy runs

    F of stage s  in slot s + 2j,        B of stage s  in slot 2S − 1 − s + 2j.

Rank r holds the stages of copy 0 whose slots have the parity of r in one half of the passes and
the other parity in the other half; with an even number D of ranks the mirror image has exactly the
slots that are left, for D / 2 micro-batches a copy, on every placement that a mirror is made of
(linear, v, wave, looped). D micro-batches so make a *unit*. More are units behind one another,
rank by rank ("direct concatenation"); the last may be smaller, its micro-batches shared out as
evenly as possible.
"""

from synth.errors import SynthError
from synth.families.family import Programs, Setting
from synth.kinds import OpKind
from synth.schedule.model import Placement
from synth.schedule.ops import Op


def concatenated(name: str, setting: Setting) -> Programs:
    """Units of D micro-batches behind one another, the last with what is left.

    Raises:
        SynthError: an odd number of ranks.
    """
    num_ranks, total = setting.num_ranks, setting.num_micro_batches
    if num_ranks % 2:
        raise SynthError(
            f"{name} needs an even number of ranks, given {num_ranks}: with an odd number its two "
            f"directions meet in the same slots; take one rank more or less"
        )
    slots: list[list[tuple[int, Op]]] = [[] for _ in range(num_ranks)]
    for unit, first in enumerate(range(0, total, num_ranks)):
        _add_unit(slots, setting, unit, range(first, min(first + num_ranks, total)))
    return [[op for _, op in sorted(ops)] for ops in slots]


def _add_unit(
    slots: list[list[tuple[int, Op]]], setting: Setting, unit: int, micro_batches: range
) -> None:
    """Put up to D micro-batches into the slots of a unit, the first half of them on copy 0."""
    num_stages = setting.num_stages
    half = (len(micro_batches) + 1) // 2
    for replica, mine in enumerate((micro_batches[:half], micro_batches[half:])):
        for k, j in enumerate(mine):
            begin = 2 * num_stages * unit + 2 * k
            for stage, rank in enumerate(setting.placement.ranks[replica]):
                back = begin + 2 * num_stages - 1 - stage
                slots[rank].append((begin + stage, Op(OpKind.F, stage, j, replica)))
                slots[rank].append((back, Op(OpKind.BW, stage, j, replica)))
