"""GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""

from synth.families._lib.family import Family, Programs, Setting, forwards
from synth.families._lib.recompute_option import RECOMPUTE, recomputed
from synth.op_kinds import OpKind
from synth.schedule.ops import Op


def make(setting: Setting) -> Programs:
    """Backwards run in the order of the forwards; the paper leaves the order open.

    With `recompute`, as in the paper, a rank holds the inputs of N micro-batches and the saved
    activations of one: every micro-batch runs its forward again before its backward, in every
    stage.
    """
    m = setting.num_micro_batches
    programs = [
        forwards(s, 0, m) + [Op(OpKind.BW, s, j) for j in range(m)]
        for s in range(setting.num_ranks)
    ]
    return recomputed(setting, programs)


FAMILY = Family("gpipe", "Huang et al. 2019, arXiv 1811.06965", make, options=(RECOMPUTE,))
