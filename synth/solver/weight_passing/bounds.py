"""Lower bounds, in closed form, on every schedule whose weights travel in a given way.

Three figures are combined, each for the rank or the link where it is largest:

    work    a rank's head (until the weights of a stage have come), its work, and its tail: what
            must follow the last op of the rank
    links   the transfers of a link of the ring, or all collectives, which run one after another,
            and what must follow the last of them
    visits  the least number of visits under a memory limit, which the second figure counts

**Ring.** The bounds are of schedules in which a rank other than rank 0 gets weights from the rank
before it (`passes_from_rank_to_rank`), as it does if all ranks begin visits in the same rounds.

**Tail on a ring.** The last F, B, W or BW of a rank is a W or BW of its last micro-batch, because
the sum of its stage passes through all micro-batches in order. After it, every later micro-batch
adds to the sum on the next rank, which then goes to its home and is read by STEP.

**Visits.** A visit serves forwards and backwards of its stage. A forward is *paired* if the same
visit serves its backward. The visit of a paired forward of stage s also spans the forward of the
last stage, so for each micro-batch the weights of its paired stages, those of the last stage and
the micro-batch's activations fit at once. Forwards of one visit that are not paired all keep their
activations, in stages 0 to s, when the last of them runs, so a visit has at most M(s) of them. With
x(s), the share of micro-batches that are paired in stage s, a stage of G micro-batches has at least
max(1, G · (1 − x(s)) / M(s)) visits. The least total time of visits is a fractional knapsack, which
is filled in the order of the time saved per byte.

Every rank begins at 0: its first op is an UNSHARD, or the first op of rank 0, which is at home of
stage 0. So its period is its end, and bounds of the makespan hold for the period too.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from synth.certificate import NOTHING_PROVEN, Proven
from synth.costs import StageCosts
from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.schedule.memory import kept_bytes
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW

_NEVER = 1 << 62


def prove_weight_passing(travel: WeightPassingProblem) -> Proven:
    """The best of these bounds, in the problem's objective."""
    fitting = levels_that_may_fit(travel)
    if not fitting:
        return NOTHING_PROVEN
    us = min(level_bound_us(travel, sharded) for sharded in fitting)
    return Proven.by_closed_forms(travel.problem.objective.value_us(Spans(us, us)))


def level_bound_us(travel: WeightPassingProblem, sharded: Sharded) -> int:
    """The best of these bounds of the makespan for one kind of state kept by homes alone."""
    of_level = _on_ring if travel.movement == WeightMovement.RING else _gathered
    return of_level(travel, sharded)


def levels_that_may_fit(travel: WeightPassingProblem) -> list[Sharded]:
    """The kinds of state kept by homes alone with which each rank can hold one micro-batch."""
    caps = travel.problem.caps_bytes
    return [
        sharded
        for sharded in travel.levels
        if caps is None or all(map(int.__ge__, caps, needed_bytes(travel, sharded)))
    ]


def needed_bytes(travel: WeightPassingProblem, sharded: Sharded) -> list[int]:
    """The least memory of each rank: what it keeps, and one op of one micro-batch.

    W and BW also hold the sum of their stage's gradients, unless gradients are kept whole. A
    backward in two ops needs that in W, where weights and earlier activations may be gone.
    """
    problem, flow = travel.problem, travel.flow(sharded)
    found = []
    for rank in range(travel.num_ranks):
        below = most = 0
        for number, stage in enumerate(travel.stages):
            is_away = sharded == Sharded.WEIGHTS and not flow.keeps_all(number, rank)
            weights = stage.parameter_bytes if is_away else 0
            first = below + stage.rise_bytes[F]
            below += stage.saved_bytes
            added = 0 if sharded == Sharded.OPTIMIZER else stage.gradient_bytes
            whole = weights + below + stage.rise_bytes[BW] + added
            apart = max(
                weights + below + stage.rise_bytes[B],
                stage.saved_w_bytes + stage.rise_bytes[W] + added,
            )
            most = max(most, weights + first, min(whole, apart))
        found.append(most + kept_bytes(problem.costs, problem.placement, flow, rank))
    return found


def least_cap_bytes(travel: WeightPassingProblem) -> int:
    """The least memory limit for all ranks that closed forms do not exclude."""
    return min(max(needed_bytes(travel, sharded)) for sharded in travel.levels)


def backward_us(stage: StageCosts) -> int:
    """The least time of B and W of a micro-batch."""
    us = stage.duration_us
    return min(us[BW], us[B] + us[W])


class _Backward(NamedTuple):
    """The least times of a stage's backward: of all of it, of its first op, and of its last one."""

    whole_us: int
    first_us: int
    adding_us: int


def _backwards(travel: WeightPassingProblem, sharded: Sharded) -> list[_Backward]:
    """The backward of each stage: BW, or B and W if the memory limit has room for what B leaves.

    Behind B that is there with the activations of the micro-batch in the stages before.
    """
    headrooms, below = travel.headrooms(sharded), 0
    found = []
    for stage in travel.stages:
        left, us = below + stage.saved_w_bytes, stage.duration_us
        below += stage.saved_bytes
        if headrooms is None or left <= max(headrooms):
            least = backward_us(stage), min(us[B], us[BW]), min(us[W], us[BW])
        else:
            least = us[BW], us[BW], us[BW]
        found.append(_Backward(*least))
    return found


def _work_us(
    travel: WeightPassingProblem, gates_us: Sequence[int], backwards: Sequence[_Backward]
) -> int:
    """The earliest end of a rank's ops but STEPs: the largest sum of a gate and the work after it.

    Args:
        travel: the problem.
        backwards: by stage.
        gates_us: by stage a time before which its weights, or those of a stage before it, are not
            on the rank. Its forwards run after that, those of later stages, and all backwards.
    """
    backwards_us = travel.rounds * sum(one.whole_us for one in backwards)
    return backwards_us + _forwards_us(travel, gates_us)


def _forwards_us(travel: WeightPassingProblem, gates_us: Sequence[int]) -> int:
    """The earliest end of all forwards of a rank."""
    behind_us, found_us = 0, 0
    for stage, gate_us in reversed([*zip(travel.stages, gates_us, strict=True)]):
        behind_us += travel.rounds * stage.duration_us[F]
        found_us = max(found_us, gate_us + behind_us)
    return found_us


def _first_gradient_us(backwards: Sequence[_Backward]) -> int:
    """The least time from the forwards of a micro-batch to the end of its first W."""
    found_us, before_us = [], 0
    for backward in reversed(backwards):
        found_us.append(before_us + backward.whole_us)
        before_us += backward.first_us
    return min(found_us)


# All-gathers and reduce-scatters


def _gathered(travel: WeightPassingProblem, sharded: Sharded) -> int:
    stages = range(len(travel.stages))
    gathers_us = [travel.gather_us(stage) for stage in stages]
    scatters_us, steps_us = ([of(s) for s in stages] for of in (travel.scatter_us, travel.step_us))
    last_us = min(map(sum, zip(scatters_us, steps_us, strict=True)))
    gates_us, backwards = list(accumulate(gathers_us)), _backwards(travel, sharded)
    work_us = _work_us(travel, gates_us, backwards) + max(last_us, sum(steps_us))
    # Before the last W of any stage there are all forwards; behind it, a scatter of each stage.
    first_us = _forwards_us(travel, gates_us) + travel.rounds * _first_gradient_us(backwards)
    headrooms = travel.headrooms(sharded)
    headroom = None if headrooms is None or sharded != Sharded.WEIGHTS else min(headrooms)
    visits_us = least_visits_us(travel, gathers_us, headroom)
    return max(work_us, max(first_us, visits_us) + sum(scatters_us) + min(steps_us))


def least_visits_us(travel: WeightPassingProblem, each_us: list[int], headroom: int | None) -> int:
    """The least time of all visits of a rank, in a channel that takes them one after another.

    Args:
        travel: the problem.
        each_us: the time of a visit, by stage.
        headroom: the bytes of a rank for what is not static; None: no limit.
    """
    if headroom is None:
        return sum(each_us)
    stages, rounds = travel.stages, travel.rounds
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


# On a ring


def _on_ring(travel: WeightPassingProblem, sharded: Sharded) -> int:
    p, m = travel.num_ranks, travel.problem.num_micro_batches
    backwards = _backwards(travel, sharded)
    stages = range(len(travel.stages))
    arrivals_us = [_arrivals_us(travel, stage) for stage in stages]
    found = []
    for rank in range(p):
        gates_us = list(accumulate((arrivals_us[stage][rank] for stage in stages), max))
        steps_us = sum(travel.step_us(stage) for stage in travel.stages_at(rank))
        tail_us = min(
            _tail_us(travel, stage, m - p + rank, backwards[stage].adding_us) for stage in stages
        )
        found.append(_work_us(travel, gates_us, backwards) + max(steps_us, tail_us))
        found.append(_link_us(travel, rank, gates_us[0], backwards))
    return max(found)


def _arrivals_us(travel: WeightPassingProblem, stage: int) -> list[int]:
    """By rank the least time until a stage's weights are there: shortest paths from its home."""
    costs, num_bytes = travel.problem.costs, travel.stages[stage].parameter_bytes
    far_us = dict.fromkeys(range(travel.num_ranks), _NEVER)
    far_us[travel.flow().homes[stage][0]] = 0
    found_us: dict[int, int] = {}
    while far_us:
        near = min(far_us, key=far_us.__getitem__)
        found_us[near] = far_us.pop(near)
        for rank in far_us:
            by_near_us = found_us[near] + costs.transfer_us(num_bytes, near, rank)
            far_us[rank] = min(far_us[rank], by_near_us)
    return [found_us[rank] for rank in range(travel.num_ranks)]


def _tail_us(travel: WeightPassingProblem, stage: int, micro_batch: int, adding_us: int) -> int:
    """The least time from the end of a W of a micro-batch to the end of its stage's STEP."""
    p, m = travel.num_ranks, travel.problem.num_micro_batches
    home = travel.flow().homes[stage][0]
    hops = [(j % p, (j + 1) % p) for j in range(micro_batch, m - 1)]
    hops_us = _hops_us(travel, stage, [*hops, ((m - 1) % p, home)])
    return hops_us + len(hops) * adding_us + travel.step_us(stage)


def _hops_us(travel: WeightPassingProblem, stage: int, hops: Iterable[tuple[int, int]]) -> int:
    """The time of a stage's gradient over some hops; those that stay on a rank take none."""
    num_bytes = travel.stages[stage].gradient_bytes
    costs = travel.problem.costs
    return sum(costs.transfer_us(num_bytes, *hop) for hop in hops if hop[0] != hop[1])


def _link_us(
    travel: WeightPassingProblem, rank: int, head_us: int, backwards: Sequence[_Backward]
) -> int:
    """All transfers of the link from a rank to the next one, and the ops after the last of them.

    These are the sums of gradients, and the weights of visits, but for those of rank 0, which may
    come from their homes.
    """
    p, m = travel.num_ranks, travel.problem.num_micro_batches
    costs, after = travel.problem.costs, (rank + 1) % p
    stages = range(len(travel.stages))
    sums_us = sum(
        _hops_us(travel, stage, [(rank, after)] * len(range(rank, m - 1, p))) for stage in stages
    )
    end_us = min(one.adding_us for one in backwards) + min(
        _hops_us(travel, stage, [((m - 1) % p, travel.flow().homes[stage][0])])
        + travel.step_us(stage)
        for stage in stages
    )
    forwards_us = sum(stage.duration_us[F] for stage in travel.stages)
    by_sums = head_us + forwards_us + _first_gradient_us(backwards) + sums_us + end_us
    if after == 0 and p > 2:
        return by_sums
    weights_us = [
        0
        if travel.flow().is_home(stage, after)
        else costs.transfer_us(travel.stages[stage].parameter_bytes, rank, after)
        for stage in stages
    ]
    headrooms = travel.headrooms(Sharded.WEIGHTS)
    headroom = None if headrooms is None else headrooms[after]
    visits_us = least_visits_us(travel, weights_us, headroom)
    return max(by_sums, visits_us + sums_us + end_us)
