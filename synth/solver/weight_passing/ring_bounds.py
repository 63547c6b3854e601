"""Lower bounds on every schedule that passes weights round a ring.

They are bounds of schedules in which a rank other than rank 0 gets weights from the rank before it
(`passes_from_rank_to_rank`), as it does if all ranks begin visits in the same rounds.

    work    a rank's head (until the weights of a stage have come), its work, and its tail
    links   the transfers of a link of the ring and what must follow the last of them, with the
            least number of visits under a memory limit
    sums    the sum of a stage's gradients: it passes all micro-batches one after another

**Tail.** The last F, B, W or BW of a rank is a W or BW of its last micro-batch, because the sum of
its stage passes through all micro-batches in order. After it, every later micro-batch adds to the
sum on the next rank, which then goes to its home and is read by STEP.

**Sums.** Before the first W of a stage there are the forwards of micro-batch 0 and its backwards in
later stages. Then each micro-batch adds to the sum after it has come from the rank before. If the
stage has BW only, the backwards of the last micro-batch in earlier stages follow on its rank.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from synth.op_kinds import OpKind
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.problem import WeightPassingProblem
from synth.solver.weight_passing.rank_work import (
    Backward,
    backwards_of,
    first_gradient_us,
    forwards_us,
    least_visits_us,
    work_us,
)

F = OpKind.F

_NEVER = 1 << 62


def ring_bound_us(passing: WeightPassingProblem) -> int:
    """The best of these bounds of the makespan."""
    p, m = passing.num_ranks, passing.problem.num_micro_batches
    backwards = backwards_of(passing, Sharded.WEIGHTS)
    stages = range(len(passing.stages))
    arrivals_us = [_arrivals_us(passing, stage) for stage in stages]
    found = []
    for rank in range(p):
        gates_us = list(accumulate((arrivals_us[stage][rank] for stage in stages), max))
        steps_us = sum(passing.step_us(stage) for stage in passing.stages_at(rank))
        tail_us = min(
            _passing_us(passing, stage, m - p + rank, backwards[stage].adding_us)
            + _home_us(passing, stage)
            for stage in stages
        )
        found.append(work_us(passing, gates_us, backwards) + max(steps_us, tail_us))
        found.append(_link_us(passing, rank, gates_us[0], backwards))
    gates_us = list(accumulate((arrivals_us[stage][0] for stage in stages), max))
    forward_us = forwards_us(passing, gates_us, 1)
    found += [_sum_us(passing, stage, forward_us, backwards) for stage in stages]
    return max(found)


def _arrivals_us(passing: WeightPassingProblem, stage: int) -> list[int]:
    """By rank the least time until a stage's weights are there: shortest paths from its home."""
    costs, num_bytes = passing.problem.costs, passing.stages[stage].parameter_bytes
    far_us = dict.fromkeys(range(passing.num_ranks), _NEVER)
    far_us[passing.flow().homes[stage][0]] = 0
    found_us: dict[int, int] = {}
    while far_us:
        near = min(far_us, key=far_us.__getitem__)
        found_us[near] = far_us.pop(near)
        for rank in far_us:
            by_near_us = found_us[near] + costs.transfer_us(num_bytes, near, rank)
            far_us[rank] = min(far_us[rank], by_near_us)
    return [found_us[rank] for rank in range(passing.num_ranks)]


def _passing_us(passing: WeightPassingProblem, stage: int, micro_batch: int, adding_us: int) -> int:
    """The least time from the end of a W of a micro-batch to the end of the last micro-batch's."""
    p, m = passing.num_ranks, passing.problem.num_micro_batches
    hops = [(j % p, (j + 1) % p) for j in range(micro_batch, m - 1)]
    return _hops_us(passing, stage, hops) + len(hops) * adding_us


def _home_us(passing: WeightPassingProblem, stage: int) -> int:
    """The time from the last W of a stage to the end of its STEP."""
    last = (passing.problem.num_micro_batches - 1) % passing.num_ranks
    to_home = [(last, passing.flow().homes[stage][0])]
    return _hops_us(passing, stage, to_home) + passing.step_us(stage)


def _sum_us(
    passing: WeightPassingProblem, stage: int, forward_us: int, backwards: Sequence[Backward]
) -> int:
    """The least end of what follows a stage's sum of gradients, which passes all micro-batches.

    Args:
        forward_us: the earliest end of the forwards of micro-batch 0.
    """
    own = backwards[stage]
    begin_us = forward_us + sum(one.first_us for one in backwards[stage + 1 :]) + own.whole_us
    passed_us = _passing_us(passing, stage, 0, own.adding_us)
    after_us = _home_us(passing, stage)
    if own.is_one_op:
        # The backwards in earlier stages follow on the rank, each one's first op after another.
        ending_us = 0
        for before in reversed(range(stage)):
            by_sum_us = ending_us + backwards[before].whole_us + _home_us(passing, before)
            after_us = max(after_us, by_sum_us)
            ending_us += backwards[before].first_us
    return begin_us + passed_us + after_us


def _hops_us(passing: WeightPassingProblem, stage: int, hops: Iterable[tuple[int, int]]) -> int:
    """The time of a stage's gradient over some hops; those that stay on a rank take none."""
    num_bytes = passing.stages[stage].gradient_bytes
    costs = passing.problem.costs
    return sum(costs.transfer_us(num_bytes, *hop) for hop in hops if hop[0] != hop[1])


def _link_us(
    passing: WeightPassingProblem, rank: int, head_us: int, backwards: Sequence[Backward]
) -> int:
    """All transfers of the link from a rank to the next one, and the ops after the last of them.

    These are the sums of gradients, and the weights of visits. On more than two ranks the weights
    that rank 0 uses are not counted, since they may come from their homes.
    """
    p, m = passing.num_ranks, passing.problem.num_micro_batches
    costs, after = passing.problem.costs, (rank + 1) % p
    stages = range(len(passing.stages))
    sums_us = sum(
        _hops_us(passing, stage, [(rank, after)] * len(range(rank, m - 1, p))) for stage in stages
    )
    end_us = min(one.adding_us for one in backwards) + min(
        _home_us(passing, stage) for stage in stages
    )
    forward_us = sum(stage.duration_us[F] for stage in passing.stages)
    # With one round no sum passes the link from the last rank, so no W follows one there.
    has_sums = bool(range(rank, m - 1, p))
    by_sums = head_us + forward_us + first_gradient_us(backwards) + sums_us + end_us
    by_sums = by_sums if has_sums else 0
    if after == 0 and p > 2:
        return by_sums
    weights_us = [
        0
        if passing.flow().is_home(stage, after)
        else costs.transfer_us(passing.stages[stage].parameter_bytes, rank, after)
        for stage in stages
    ]
    headrooms = passing.headrooms(Sharded.WEIGHTS)
    headroom = None if headrooms is None else headrooms[after]
    visits_us = least_visits_us(passing, weights_us, headroom)
    return max(by_sums, visits_us + sums_us + end_us)
