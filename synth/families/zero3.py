"""ZeRO-3, as FSDP does it: parameters, gradients and optimizer state are sharded.

Parameters are gathered before each forward and each backward of a stage and freed after it, except
where the backward of the last stage follows its forward at once. Gradients are reduce-scattered
after each backward, which is also the default of FSDP2 and DeepSpeed. The option `ahead` is the
number of stages for which parameters are gathered before the one that runs.
"""

from functools import partial

from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import Count, rounds
from synth.families._lib.zero_state import (
    LAYOUT,
    SOURCE,
    computing,
    micro_batches_of,
    reducing,
    shared_by_all,
)
from synth.op_kinds import OpKind
from synth.schedule.insert_visits import with_visits
from synth.schedule.weight_flow import Sharded


def make(setting: Setting) -> Programs:
    """Micro-batches one after another on each rank, as many on each."""
    programs = []
    for rank, own in enumerate(micro_batches_of(setting)):
        ops = list(reducing(computing(setting.num_stages, own, rank), own))
        if setting.num_ranks > 1:  # else all parameters are at home
            ahead = setting.count("ahead")
            ops = list(with_visits(ops, ahead, shares_visit=lambda op: op.kind == OpKind.BW))
        programs.append(ops)
    return programs


FAMILY = Family(
    "zero3",
    f"{SOURCE}; Zhao et al. 2023, arXiv 2304.11277",
    make,
    LAYOUT,
    options=(rounds(1), Count("ahead", 1, least=0)),
    weights=partial(shared_by_all, sharded=Sharded.WEIGHTS),
)
