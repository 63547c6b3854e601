"""ZeRO-2: gradients and optimizer state are sharded.

The updated parameters are gathered once, at the beginning of an iteration, and the gradients are
reduce-scattered after each backward of a stage.
"""

from functools import partial

from synth.families._lib.family import Family
from synth.families._lib.options import rounds
from synth.families._lib.zero_state import LAYOUT, SOURCE, gathered_once, shared_by_all
from synth.schedule.weight_flow import Sharded

FAMILY = Family(
    "zero2",
    SOURCE,
    partial(gathered_once, reduces_each=True),
    LAYOUT,
    options=(rounds(1),),
    weights=partial(shared_by_all, sharded=Sharded.GRADIENTS),
)
