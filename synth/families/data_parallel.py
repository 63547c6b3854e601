"""Data parallelism: a copy of the whole model on every rank, and micro-batches dealt out in turn.

Gradients are added up by an all-reduce of each stage as soon as its last backward is over (Li et
al. 2020, "PyTorch Distributed", arXiv 2006.15704, section 3.2). A rank keeps everything, which is
what ZeRO shares out.
"""

from synth.families._lib.family import Family, Programs, Setting
from synth.op_kinds import OpKind
from synth.schedule.ops import Op


def make(setting: Setting) -> Programs:
    """One micro-batch after the other; rank r runs those whose number is r modulo D."""
    stages = range(setting.num_stages)
    return [
        [
            op
            for j in range(rank, setting.num_micro_batches, setting.num_ranks)
            for op in (
                *(Op(OpKind.F, s, j, rank) for s in stages),
                *(Op(OpKind.BW, s, j, rank) for s in reversed(stages)),
            )
        ]
        for rank in range(setting.num_ranks)
    ]


FAMILY = Family("data-parallel", "Li et al. 2020, arXiv 2006.15704", make, "all-stages")
