"""Breadth-first: all micro-batches pass a round of stages before the next (Lamy-Poirier 2023)."""

from dataclasses import replace

from synth.families._lib.family import Family, Programs, Setting, forwards
from synth.families._lib.options import rounds
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op


def make(setting: Setting) -> Programs:
    """GPipe on v stages a rank: all forwards round by round, then all backwards, last round first.

    Its bubble is that of interleaved 1F1B, from m = D on, but it holds all micro-batches. The
    paper's gain is that a stage's weights are needed once and its gradients are reduced once.
    """
    programs = []
    for rank in range(setting.num_ranks):
        stages, m = range(rank, setting.num_stages, setting.num_ranks), setting.num_micro_batches
        program = [op for s in stages for op in forwards(s, 0, m)]
        program += [Op(OpKind.BW, s, j) for s in reversed(stages) for j in range(m)]
        programs.append(program)
    return programs


def buffering(setting: Setting, _: Schedule) -> Buffering:
    """The last rank's output waits while the first rank runs the m − D micro-batches between."""
    between = max(0, setting.num_micro_batches - setting.num_ranks)
    usual = Buffering()
    return replace(usual, send_behind=usual.send_behind + between)


FAMILY = Family(
    "breadth-first",
    "Lamy-Poirier 2023, arXiv 2211.05953",
    make,
    "looped:{rounds}",
    options=(rounds(2, 2),),
    buffering=buffering,
)
