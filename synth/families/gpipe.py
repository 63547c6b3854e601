"""GPipe: all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965)."""

from synth.families.family import Family, Programs, forwards
from synth.kinds import OpKind
from synth.schedule.ops import Op


def make(num_ranks: int, num_micro_batches: int) -> Programs:
    """Backwards run in the order of the forwards; the paper leaves the order open."""
    return [
        forwards(s, 0, num_micro_batches) + [Op(OpKind.BW, s, j) for j in range(num_micro_batches)]
        for s in range(num_ranks)
    ]


FAMILY = Family("gpipe", "Huang et al. 2019, arXiv 1811.06965", make)
