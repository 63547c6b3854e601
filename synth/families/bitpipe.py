"""BitPipe: two V-shaped interleaved pipelines in opposite directions (arXiv 2410.19367).

The parameter is the number of waves, two stages each, of a copy; the paper's default is one, the
V, and its appendix A generalises.
"""

from synth.families.family import Family, Programs, Setting
from synth.families.options import rounds
from synth.families.units import check_even, concatenated


def make(setting: Setting) -> Programs:
    """Each copy takes half of D micro-batches; units of D by direct concatenation.

    F = B: D − 2 times F of one stage of bubble however many units. B = 2F: 2 (D − 2) for one unit,
    which is the printed (D − 2) / (3 N + D − 2); each further one brings D − 2 more, so that the
    printed rate holds at N = D alone. The paper's early forwarding (appendix B), which takes those
    away at the price of memory, is not here.
    """
    check_even("bitpipe", setting)
    return concatenated(setting)


FAMILY = Family(
    "bitpipe",
    "Wu et al. 2024, arXiv 2410.19367",
    make,
    "bidirectional-wave:{rounds}",
    options=(rounds(1),),
)
