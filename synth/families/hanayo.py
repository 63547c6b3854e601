"""Hanayo: micro-batches in waves over the ranks (Liu et al. 2023, arXiv 2308.15762).

The parameter is the number of waves W, two stages of each rank a wave. Chimera without the second
copy: what ran there on the mirrored ranks runs here on the way back.
"""

from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import rounds
from synth.families._lib.units import concatenated


def make(setting: Setting) -> Programs:
    """D micro-batches a unit, which is what the paper draws; more as units behind one another.

    In times of one of the 2 W D stages the bubble is 2 (D − 1) for F = B, and 4 (D − 1) of a unit
    for B = 2F: (2D − 2) / (3 W D + 2D − 2) at N = D.
    """
    return concatenated(setting)


FAMILY = Family(
    "hanayo", "Liu et al. 2023, arXiv 2308.15762", make, "wave:{rounds}", options=(rounds(1),)
)
