"""Mobius: stages in the host's memory, swapped in for all micro-batches (ASPLOS 2023).

Feng et al., "Mobius: Fine Tuning Large-Scale Models on Commodity GPU Servers",
DOI 10.1145/3575693.3575703. The model has more stages than ranks, and the host's memory keeps the
state of all of them: parameters, gradients and optimizer state. A rank has the weights of the stage
that runs, and of the next `ahead` ones:

    rank    | F of stage s, all micro-batches | F of stage s + D | …
    copies  | weights of stage s + D          | …                          over the host's link
    rank    | BW of stage s, all              | BW of stage s − D | …
    copies  | weights of stage s − D          | gradient of stage s out |

All micro-batches pass a round of stages before the next one (as in `breadth_first`), so that each
stage comes once for its forwards and once for its backwards, the last round once for both. Its
gradient leaves once, after its last backward, and STEP runs on the host. Saved activations stay on
the rank, and stage s is on rank s mod D: the paper's moves of activations and its mapping of stages
to GPUs behind different PCIe switches are not modelled.
"""

from dataclasses import replace

from synth.errors import SynthError
from synth.families import breadth_first
from synth.families._lib.family import Family, Programs, Setting
from synth.families._lib.options import Count, rounds
from synth.op_kinds import ADDING, OpKind
from synth.schedule.insert_visits import with_visits
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.weight_flow import Route, WeightFlow

_AHEAD = Count("ahead", 1, least=0)


def make(setting: Setting) -> Programs:
    """Breadth-first order, with a visit for each run of a stage's ops.

    Raises:
        SynthError: the profile has no link to the host, or there is one micro-batch.
    """
    if setting.costs.links.host is None:
        raise SynthError(
            "mobius needs a link to the host's memory, and the profile has none; add "
            '`"host": {"latency_us": …, "bandwidth_bytes_per_s": …}` to its links'
        )
    if setting.num_micro_batches < 2:
        raise SynthError("mobius needs at least 2 micro-batches, given 1")
    return [
        list(with_visits(_reducing(setting, list(program)), setting.count("ahead")))
        for program in breadth_first.make(_unblocked(setting))
    ]


def _unblocked(setting: Setting) -> Setting:
    return replace(setting, options={**setting.options, "block": 0})


def _reducing(setting: Setting, program: list[Op]) -> list[Op]:
    """Put a REDUCE_GRAD after the last backward of each stage."""
    last = setting.num_micro_batches - 1
    found: list[Op] = []
    for op in program:
        found.append(op)
        if op.kind in ADDING and op.microbatch == last:
            found.append(Op(OpKind.REDUCE_GRAD, op.stage, 0, op.replica))
    return found


def buffering(setting: Setting, schedule: Schedule) -> Buffering:
    """Return the buffering of breadth-first order."""
    return breadth_first.buffering(_unblocked(setting), schedule)


def weight_flow(setting: Setting) -> WeightFlow:
    """Each stage is in the host memory of its rank."""
    (ranks,) = setting.placement.ranks
    return WeightFlow(tuple((rank,) for rank in ranks), weights=Route.HOST, gradients=Route.HOST)


FAMILY = Family(
    "mobius",
    "Feng et al., ASPLOS 2023, DOI 10.1145/3575693.3575703",
    make,
    "looped:{rounds}",
    options=(rounds(2), _AHEAD),
    buffering=buffering,
    weights=weight_flow,
)
