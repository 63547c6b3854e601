"""Hanayo: micro-batches in waves over the ranks (Liu et al. 2023, arXiv 2308.15762).

The parameter is the number of waves W; each wave has two stages on every rank. It is Chimera
without the second copy: the work of the mirrored ranks runs on the way back.
"""

from synth.families._lib.concatenated_units import concatenated
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import rounds


def make(setting: Setting) -> Programs:
    """One unit of D micro-batches, as the paper draws it; more micro-batches as further units.

    In units of one stage's F the bubble is 2 (D − 1) for F = B. For B = 2F it is 4 (D − 1) for each
    unit of micro-batches: a share of (2D − 2) / (3 W D + 2D − 2) at N = D.
    """
    return concatenated(setting)


FAMILY = Family(
    "hanayo", "Liu et al. 2023, arXiv 2308.15762", make, "wave:{rounds}", options=(rounds(1),)
)
