"""DualPipe: two streams from both ends at once (DeepSeek-AI 2024, arXiv 2412.19437)."""

from synth.errors import SynthError
from synth.families._lib.dualpipe_streams import Stream, pairs, program
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import PAIRS
from synth.units import counted


def make(setting: Setting) -> Programs:
    """The first half of the micro-batches enters at rank 0, the second at the last rank.

    With `overlap` F and B run at once in the middle. The bubble is the printed one,
    (D/2 − 1) (F&B + B − 3W) with B for the whole backward, because the pair F&B hands on both
    results at its end. One after the other, F hands on its result first, and the bubble is
    (D/2 − 1) (F + B − W) with B for the input gradient alone. It holds D + 1 activations, as
    printed.
    """
    num_ranks, m = setting.num_ranks, setting.num_micro_batches
    if num_ranks % 2 or m % 2 or m < 2 * num_ranks:
        raise SynthError(
            f"dualpipe needs an even number of ranks and an even number of micro-batches, at least "
            f"two per rank; given {counted(num_ranks, 'rank')} and {counted(m, 'micro-batch')}"
        )
    programs = []
    for rank in range(num_ranks):
        down = Stream(rank, 0, 0)
        up = Stream(num_ranks - 1 - rank, 1, m // 2)
        near, far = (down, up) if rank < num_ranks // 2 else (up, down)
        place = min(rank, num_ranks - 1 - rank)
        programs.append(program(near, far, place, num_ranks // 2, m // 2))
    return programs


FAMILY = Family(
    "dualpipe",
    "DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1",
    make,
    "bidirectional",
    options=(PAIRS,),
    overlapped=pairs,
)
