"""BitPipe without the V: two looped interleaved pipelines in opposite directions (2410.19367).

The ablation "w/o V" of arXiv 2410.19367, Table 5: stage k of a copy is on rank k mod D, as in
interleaved 1F1B, for any number of rounds. The slots of `concatenated_units.py` do not collide on
loops either, and times are those of BitPipe. The V saves the transfers at its turn.
"""

from synth.families._lib.concatenated_units import check_even, concatenated
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import SYNC, rounds


def make(setting: Setting) -> Programs:
    """Units of D micro-batches, half of them on each copy, by direct concatenation."""
    check_even("bitpipe-loop", setting)
    return concatenated(setting)


FAMILY = Family(
    "bitpipe-loop",
    "Wu et al. 2024, arXiv 2410.19367, Table 5",
    make,
    "bidirectional-looped:{rounds}",
    options=(rounds(2, 2), SYNC),
)
