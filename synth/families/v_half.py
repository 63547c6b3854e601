"""V-Half: half of 1F1B's activations (Qi et al. 2024, arXiv 2405.15362)."""

from collections.abc import Callable

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.v_shape import Block, repeated


def make(setting: Setting) -> Programs:
    """Steps a = 2, b = 1: ⌊(D + 2) / 2⌋ micro-batches; about half of 1F1B's bubble."""
    return repeated(setting, building_block(setting.num_ranks))


def building_block(num_ranks: int) -> Callable[[int], Block]:
    """The slots of micro-batch 0 on a rank."""
    # Without the gap, passes of the two halves would collide for even D.
    gap = 3 if num_ranks % 2 == 0 else 0

    def block(rank: int) -> Block:
        up, back = num_ranks - 1 - rank, 3 * num_ranks - 1 + gap
        turn, end = 2 * num_ranks - 1, back + 2 * num_ranks
        return Block(2 * rank, turn + up, back + 2 * rank, end + up)

    return block


FAMILY = Family(
    "v-half",
    "Qi et al. 2024, arXiv 2405.15362, section 4",
    make,
    "v",
    timed=True,
    reads_limits=True,
    buffering=patient,
)
