"""The least work of a rank: its forwards and backwards, and the visits of weights for them.

**Visits.** A visit serves forwards and backwards of its stage. A forward is *paired* if the same
visit serves its backward. The visit of a paired forward of stage s also spans the forward of the
last stage, so for each micro-batch the weights of its paired stages, those of the last stage and
the micro-batch's activations fit at once. Forwards of one visit that are not paired all keep their
activations, in stages 0 to s, when the last of them runs, so a visit has at most M(s) of them. With
x(s), the share of micro-batches that are paired in stage s, a stage of G micro-batches has at least
max(1, G · (1 − x(s)) / M(s)) visits. The least total time of visits is a fractional knapsack, which
is filled in the order of the time saved per byte.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.problem import WeightPassingProblem

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW


def backward_us(stage: StageCosts) -> int:
    """The least time of B and W of a micro-batch."""
    us = stage.duration_us
    return min(us[BW], us[B] + us[W])


class Backward(NamedTuple):
    """The least times of a stage's backward.

    Attributes:
        first_us: of the op that makes the gradient of the stage's input.
        adding_us: of the op that adds to the sum of the stage's gradients.
        is_one_op: True if memory has no room for B and W apart.
    """

    whole_us: int
    first_us: int
    adding_us: int
    is_one_op: bool = False


def backwards_of(passing: WeightPassingProblem, sharded: Sharded) -> list[Backward]:
    """The backward of each stage: BW, or B and W if the memory limit has room for what B leaves.

    The op after B runs beside that and the activations of the micro-batch in the stages before.
    W itself runs beside the sum of gradients.
    """
    headrooms, below = passing.headrooms(sharded), 0
    rise = min(stage.rise_bytes[kind] for stage in passing.stages for kind in (F, B, W, BW))
    found = []
    for stage in passing.stages:
        us, left = stage.duration_us, stage.saved_w_bytes
        added = 0 if sharded == Sharded.OPTIMIZER else stage.gradient_bytes
        need = max(below + left + rise, left + stage.rise_bytes[W] + added)
        below += stage.saved_bytes
        if headrooms is None or need <= max(headrooms):
            found.append(Backward(backward_us(stage), min(us[B], us[BW]), min(us[W], us[BW])))
        else:
            found.append(Backward(us[BW], us[BW], us[BW], is_one_op=True))
    return found


def work_us(
    passing: WeightPassingProblem, gates_us: Sequence[int], backwards: Sequence[Backward]
) -> int:
    """The earliest end of a rank's ops but STEPs: the largest sum of a gate and the work after it.

    Args:
        gates_us: by stage a time before which its weights, or those of a stage before it, are not
            on the rank. Its forwards run after that, those of later stages, and all backwards.
    """
    backwards_us = passing.rounds * sum(one.whole_us for one in backwards)
    return backwards_us + forwards_us(passing, gates_us, passing.rounds)


def forwards_us(passing: WeightPassingProblem, gates_us: Sequence[int], rounds: int) -> int:
    """The earliest end of the forwards of a rank's first micro-batches."""
    later_us, found_us = 0, 0
    for stage, gate_us in reversed([*zip(passing.stages, gates_us, strict=True)]):
        later_us += rounds * stage.duration_us[F]
        found_us = max(found_us, gate_us + later_us)
    return found_us


def first_gradient_us(backwards: Sequence[Backward]) -> int:
    """The least time from the forwards of a micro-batch to the end of its first W."""
    found_us, before_us = [], 0
    for backward in reversed(backwards):
        found_us.append(before_us + backward.whole_us)
        before_us += backward.first_us
    return min(found_us)


def least_visits_us(passing: WeightPassingProblem, each_us: list[int], headroom: int | None) -> int:
    """The least time of all visits of a rank, in a channel that takes them one after another.

    Args:
        each_us: the time of a visit, by stage.
        headroom: the bytes of a rank for what is not static; None: no limit.
    """
    if headroom is None:
        return sum(each_us)
    stages, rounds = passing.stages, passing.rounds
    below = 0  # activations of a micro-batch in the stages before
    saves: list[tuple[float, float]] = []
    total_us = 0.0
    # A stage at home needs no buffer; if visits take no time, neither do more of them.
    sizes = [stage.parameter_bytes if us else 0 for stage, us in zip(stages, each_us, strict=True)]
    for number, stage in enumerate(stages):
        left = headroom - below - sizes[number] - stage.rise_bytes[F]
        below += stage.saved_bytes
        most = max(1, 1 + left // below) if below else rounds
        more = max(0.0, rounds / most - 1)  # visits beyond the first if nothing is paired
        total_us += each_us[number] * (1 + more)
        if number < len(stages) - 1 and more:
            # Visits fall to one while the paired share rises to 1 − most / rounds.
            saves.append((each_us[number] * more, (1 - most / rounds) * sizes[number]))
        elif more:
            total_us -= each_us[number] * more  # the last stage is paired without more weights
    last = stages[-1]
    room: float = headroom - (below - last.saved_bytes) - last.rise_bytes[F] - sizes[-1]
    for saved_us, num_bytes in sorted(saves, key=lambda one: one[1] / one[0] if one[0] else 0.0):
        share = 1.0 if num_bytes <= room else max(0.0, room / num_bytes)
        total_us -= share * saved_us
        room -= share * num_bytes
    return math.ceil(total_us * (1 - 1e-12))
