"""Breadth-first: all micro-batches pass a round of stages before the next (Lamy-Poirier 2023).

With `block=U` only U micro-batches do, and each block of them runs forward and backward before the
next one begins (blockwise schedules, as in ZeroPP, arXiv 2402.03791). A block holds the activations
of its own micro-batches alone, and fills and drains the pipeline. With parameters sharded over
data-parallel pipelines (`sharded_pipelines`), a stage is gathered and reduced once for each block
instead of once for each micro-batch.
"""

from dataclasses import replace

from synth.families._lib.family import Family, Programs, Setting, forwards
from synth.families._lib.options import Count, rounds
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op

_BLOCK = Count("block", 0)


def make(setting: Setting) -> Programs:
    """GPipe on v stages a rank: all forwards round by round, then all backwards, last round first.

    Its bubble is that of interleaved 1F1B, from m = D on, but it holds all micro-batches. The
    paper's gain is that a stage's weights are needed once and its gradients are reduced once.
    """
    programs = []
    m, size = setting.num_micro_batches, _block_size(setting)
    for rank in range(setting.num_ranks):
        stages = range(rank, setting.num_stages, setting.num_ranks)
        program: list[Op] = []
        for first in range(0, m, size):
            block = range(first, min(first + size, m))
            program += [op for s in stages for op in forwards(s, block.start, block.stop)]
            program += [Op(OpKind.BW, s, j) for s in reversed(stages) for j in block]
        programs.append(program)
    return programs


def _block_size(setting: Setting) -> int:
    return setting.count("block") or setting.num_micro_batches


def buffering(setting: Setting, _: Schedule) -> Buffering:
    """The last rank's output waits while the first rank runs the micro-batches between, m − D."""
    between = max(0, min(_block_size(setting), setting.num_micro_batches) - setting.num_ranks)
    usual = Buffering()
    return replace(usual, send_behind=usual.send_behind + between)


FAMILY = Family(
    "breadth-first",
    "Lamy-Poirier 2023, arXiv 2211.05953",
    make,
    "looped:{rounds}",
    options=(rounds(2, 2), _BLOCK),
    buffering=buffering,
)
