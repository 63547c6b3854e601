"""Micro-batches in slots that never collide: what Chimera, BitPipe and Hanayo share.

With S stages in each copy and F = B = 1, micro-batch j of its copy runs

    F of stage s  in slot s + 2j,        B of stage s  in slot 2S − 1 − s + 2j.

On a rank of a wave, passes down the ranks and passes up have slots of opposite parity, and those of
one parity (F down, B up, …) follow each other at a distance of 2D: room for D micro-batches. Where
a mirror image runs as well, with an even number D of ranks, each copy has room for D / 2 and the
other has exactly the slots in between. D micro-batches so make a *unit*, which takes 2S slots of
every rank; the next unit starts 2S slots later ("direct concatenation"), and its first F's take the
holes of the one before. The last unit may be smaller. Copies share each unit as evenly as possible.

Where q micro-batches run in each slot of F, but one in each of B (Chimera's forward doubling, q = 2
for B = 2F), it is pair j that has the slots of F above, and micro-batch i of its copy the slot of B
2S − 1 − s + 2i: a unit of q D micro-batches takes S slots of F and q S of B.
"""

from collections.abc import Sequence

from synth.errors import SynthError
from synth.families._lib.family import Programs, Setting
from synth.kinds import OpKind
from synth.schedule.ops import Op

Slots = list[list[tuple[int, Op]]]


def concatenated(setting: Setting, per_slot: int = 1) -> Programs:
    """Units of D micro-batches behind one another, the last with what is left.

    Args:
        per_slot: so many micro-batches run in each slot of F, one after another: a unit has D times
            as many.
    """
    num_ranks, total = setting.num_ranks, setting.num_micro_batches
    groups = [range(j, min(j + per_slot, total)) for j in range(0, total, per_slot)]
    slots: Slots = [[] for _ in range(num_ranks)]
    for unit, first in enumerate(range(0, len(groups), num_ranks)):
        begin = (1 + per_slot) * setting.num_stages * unit
        _add_unit(slots, setting, begin, groups[first : first + num_ranks])
    return [[op for _, op in sorted(ops)] for ops in slots]


def check_even(name: str, setting: Setting) -> None:
    """Two copies in opposite directions collide on an odd number of ranks.

    Raises:
        SynthError: the number of ranks is odd.
    """
    if setting.num_ranks % 2:
        raise SynthError(
            f"{name} needs an even number of ranks, given {setting.num_ranks}: with an odd number "
            f"its two directions meet in the same slots; take one rank more or less"
        )


def _add_unit(slots: Slots, setting: Setting, begin: int, groups: Sequence[range]) -> None:
    """Put up to D groups into the slots of a unit, the first part of them on copy 0."""
    copies = setting.placement.ranks
    share = -(-len(groups) // len(copies))
    last = begin + 2 * setting.num_stages - 1
    for replica, ranks in enumerate(copies):
        own = groups[replica * share : (replica + 1) * share]
        forwards = [(2 * k, j) for k, group in enumerate(own) for j in group]
        backwards = [(2 * i, j) for i, (_, j) in enumerate(forwards)]
        for stage, rank in enumerate(ranks):
            slots[rank] += [
                *((begin + stage + at, Op(OpKind.F, stage, j, replica)) for at, j in forwards),
                *((last - stage + at, Op(OpKind.BW, stage, j, replica)) for at, j in backwards),
            ]
