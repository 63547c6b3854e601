"""GEMS: two copies of the stages take micro-batches in turn (Jain et al. 2020, SC20).

Drawn as in Li and Hoefler 2021 (arXiv 2107.06925, figure 2): the F of a micro-batch follows the B
of the previous one from rank to rank, so that it arrives where its own B begins in time. A rank
never holds more than one micro-batch. Each micro-batch takes F + D · B, which gives their bubble
rate (D − 1) / (D + 1/2) for many micro-batches and B = 2F.
"""

from synth.families._lib.family import Family, Programs, Setting
from synth.op_kinds import OpKind
from synth.schedule.ops import Op


def make(setting: Setting) -> Programs:
    """Even micro-batches on copy 0, odd ones on copy 1."""
    programs: list[list[Op]] = [[] for _ in range(setting.num_ranks)]
    for j in range(setting.num_micro_batches):
        for stage, rank in enumerate(setting.placement.ranks[j % 2]):
            programs[rank] += [Op(OpKind.F, stage, j, j % 2), Op(OpKind.BW, stage, j, j % 2)]
    return programs


FAMILY = Family("gems", "Jain et al. 2020; arXiv 2107.06925, figure 2", make, "bidirectional")
