"""GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""

from synth.families.family import Family, Programs, Setting, forwards
from synth.kinds import OpKind
from synth.schedule.ops import Op


def make(setting: Setting) -> Programs:
    """Backwards run in the order of the forwards; the paper leaves the order open."""
    m = setting.num_micro_batches
    return [
        forwards(s, 0, m) + [Op(OpKind.BW, s, j) for j in range(m)]
        for s in range(setting.num_ranks)
    ]


FAMILY = Family("gpipe", "Huang et al. 2019, arXiv 1811.06965", make)
