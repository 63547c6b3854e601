"""DualPipeV: DualPipe with one copy of the model, on a V (Sea AI Lab 2025, "Cut-in-half").

The blog post (huggingface.co/blog/ufotalent/cut-in-half) halves DualPipe (DeepSeek-AI 2024, arXiv
2412.19437, section 3.2.1); deepseek-ai/DualPipe has a program of it under this name.

In DualPipe two ranks hold each other's stages in two copies. Here one of half as many ranks holds
both stages once, and the stream that came from the other end is the one that has turned round.
With `overlap` F and B run at once in the middle, as in DualPipe.
"""

from synth.errors import SynthError
from synth.families._lib.dualpipe_streams import Stream, pairs, program
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import PAIRS
from synth.units import counted


def make(setting: Setting) -> Programs:
    """The near stream is the first pass of the ranks, the far one the way back."""
    num_ranks, m = setting.num_ranks, setting.num_micro_batches
    if m < 2 * num_ranks:
        raise SynthError(
            f"dualpipe-v needs at least two micro-batches per rank, "
            f"given {counted(num_ranks, 'rank')} and {counted(m, 'micro-batch')}"
        )
    last = setting.num_stages - 1
    return [
        program(Stream(rank), Stream(last - rank), rank, num_ranks, m) for rank in range(num_ranks)
    ]


FAMILY = Family(
    "dualpipe-v",
    "Sea AI Lab 2025 (Cut-in-half), from DualPipe, arXiv 2412.19437",
    make,
    "v",
    options=(PAIRS,),
    overlapped=pairs,
)
