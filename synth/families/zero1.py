"""ZeRO-1: the optimizer state is sharded.

The updated parameters are gathered once, at the beginning of an iteration, and the accumulated
gradients are reduce-scattered once, after the last backward of each stage.
"""

from functools import partial

from synth.families._lib.family import Family
from synth.families._lib.options import rounds
from synth.families._lib.zero_state import LAYOUT, SOURCE, gathered_once, shared_by_all
from synth.schedule.weight_flow import Sharded

FAMILY = Family(
    "zero1",
    SOURCE,
    partial(gathered_once, reduces_each=False),
    LAYOUT,
    options=(rounds(1),),
    weights=partial(shared_by_all, sharded=Sharded.OPTIMIZER),
)
