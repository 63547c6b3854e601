"""V-Min: a third of 1F1B's activations (Qi et al. 2024, arXiv 2405.15362)."""

from collections.abc import Callable

from synth.families._lib.buffering_choice import patient
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.v_shape import Block, repeated


def make(setting: Setting) -> Programs:
    """Steps a = b = 1: ⌊(D + 4) / 3⌋ micro-batches; about two thirds of 1F1B's bubble."""
    return repeated(setting, building_block(setting.num_ranks))


def building_block(num_ranks: int) -> Callable[[int], Block]:
    """The slots of micro-batch 0 on a rank."""
    # Without the gap, F of one half and B of the other would collide if 3 divides D.
    gap = 2 if num_ranks % 3 == 0 else 0

    def block(rank: int) -> Block:
        up = num_ranks - 1 - rank
        return Block(rank, num_ranks + up, 2 * num_ranks + gap + rank, 3 * num_ranks + gap + up)

    return block


FAMILY = Family(
    "v-min",
    "Qi et al. 2024, arXiv 2405.15362, section 4",
    make,
    "v",
    timed=True,
    reads_limits=True,
    buffering=patient,
)
