"""The partition of a model whose embedding and head are divided over all ranks.

Each part is a stage; between them the decoder layers are partitioned as on the placement linear.
"""

from synth.costs.divided_vocabulary import divided_vocabulary
from synth.families import vocabulary_barriers
from synth.plan.partition.balance import balance
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.schedule.model import Placement

Sizes = tuple[int, ...]


def as_parts(profile: Profile, name: str, num_ranks: int) -> Profile:
    """Return the profile in which a family's schedule is simulated: with its parts as layers.

    Args:
        profile: of whole layers.
        num_ranks: over which it divides the vocabulary, if it does.

    Raises:
        SynthError: the family is unknown, or the model has no embedding and head to be divided.
    """
    barriers = vocabulary_barriers(name)
    return divided_vocabulary(profile, num_ranks, barriers) if barriers else profile


def partitions(parts: Profile, num_ranks: int) -> list[Sizes]:
    """Return the even partition, then those of equal numbers of decoder layers.

    Args:
        parts: the profile, divided over as many ranks.
    """
    decoder = parts.replace(layers=parts.layers[num_ranks:-num_ranks], rank_speeds=None)
    even = balance(decoder, Placement.linear(num_ranks))
    ones = (1,) * num_ranks
    found = (even, *equal_cuts(StageCostTable(decoder), num_ranks))
    return [(*ones, *sizes, *ones) for sizes in dict.fromkeys(found)]
