"""Micro-batches in slots that never collide, for Chimera, BitPipe and Hanayo.

With S stages in each copy and F = B = 1, micro-batch j of its copy runs

    F of stage s  in slot s + 2j,        B of stage s  in slot 2S − 1 − s + 2j.

On a rank of a wave, passes down the ranks and passes up have slots of opposite parity. Those of one
parity (F down, B up, …) follow each other at a distance of 2D, which leaves room for D
micro-batches. If a mirror image runs as well, with an even number D of ranks, each copy has room
for D / 2 and the other copy has exactly the slots in between. D micro-batches thus make a *unit*,
which takes 2S slots of every rank. The next unit starts 2S slots later ("direct concatenation"),
and its first F's fill the holes of the previous one. The last unit may be smaller. Copies share
each unit as evenly as possible.

If q micro-batches run in each slot of F, but one in each slot of B (Chimera's forward doubling, q =
2 for B = 2F), pair j has the slots of F above, and micro-batch i of its copy has the slot of B 2S −
1 − s + 2i. A unit of q D micro-batches takes S slots of F and q S slots of B.
"""

from collections.abc import Sequence

from synth.errors import SynthError
from synth.families._lib.family import Programs, Setting
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

Slots = list[list[tuple[int, Op]]]


def concatenated(setting: Setting, per_slot: int = 1) -> Programs:
    """Units of D micro-batches one after another; the last unit may be smaller.

    Args:
        setting: with D ranks.
        per_slot: the number of micro-batches that run in each slot of F, one after another; a unit
            has D times as many.
    """
    num_ranks, total = setting.num_ranks, setting.num_micro_batches
    groups = [range(j, min(j + per_slot, total)) for j in range(0, total, per_slot)]
    slots: Slots = [[] for _ in range(num_ranks)]
    for unit, first in enumerate(range(0, len(groups), num_ranks)):
        begin = (1 + per_slot) * setting.num_stages * unit
        _add_unit(slots, setting, begin, groups[first : first + num_ranks])
    return [[op for _, op in sorted(ops)] for ops in slots]


def check_even(name: str, setting: Setting) -> None:
    """Refuse an odd number of ranks, on which two copies in opposite directions collide."""
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
