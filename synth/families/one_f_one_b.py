"""1F1B (PipeDream-Flush, DAPPLE): Narayanan et al. 2021 (arXiv 2006.09503), Fan et al. 2021."""

from synth.families._lib.family import Family, Programs, Setting, forwards
from synth.families._lib.recompute_option import RECOMPUTE, recomputed
from synth.op_kinds import OpKind
from synth.schedule.ops import Op


def make(setting: Setting) -> Programs:
    """With `recompute` a rank holds its inputs, and the saved activations of one micro-batch."""
    return recomputed(setting, in_order(setting))


def in_order(setting: Setting) -> list[list[Op]]:
    """Rank r warms up with p − r − 1 forwards, then alternates; it holds min(m, p − r) at most."""
    num_ranks, num_micro_batches = setting.num_ranks, setting.num_micro_batches
    programs = []
    for s in range(num_ranks):
        warmup = min(num_micro_batches, num_ranks - s - 1)
        forward = forwards(s, 0, num_micro_batches)
        program = forward[:warmup]
        for j in range(num_micro_batches):
            program += forward[warmup + j : warmup + j + 1]
            program.append(Op(OpKind.BW, s, j))
        programs.append(program)
    return programs


FAMILY = Family("1f1b", "Narayanan et al. 2021, arXiv 2006.09503", make, options=(RECOMPUTE,))
