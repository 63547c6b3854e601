"""Lower bounds, in closed form, on every schedule with a given kind of weight passing.

Three figures are combined, each for the rank or the link where it is largest:

    work    a rank's head (until the weights of a stage have come), its work, and its tail: what
            must follow the last op of the rank
    links   the transfers of a link of the ring, or all collectives, which run one after another,
            and what must follow the last of them, with the least number of visits (`rank_work`)
    sums    on a ring, the sum of a stage's gradients (`ring_bounds`)

Every rank begins at 0: its first op is an UNSHARD, or the first op of rank 0, which is at home of
stage 0. So its period is its end, and bounds of the makespan hold for the period too.
"""

from itertools import accumulate

from synth.objective import Spans
from synth.op_kinds import OpKind
from synth.schedule.files.certificate import NOTHING_PROVEN, ProvenBound
from synth.schedule.rank_memory import kept_bytes
from synth.schedule.weight_flow import Sharded
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.rank_work import (
    backwards_of,
    first_gradient_us,
    forwards_us,
    least_visits_us,
    work_us,
)
from synth.solver.weight_passing.ring_bounds import ring_bound_us

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW


def prove_weight_passing(passing: WeightPassingProblem) -> ProvenBound:
    """The best of these bounds, in the problem's objective."""
    fitting = levels_that_may_fit(passing)
    if not fitting:
        return NOTHING_PROVEN
    us = min(level_bound_us(passing, sharded) for sharded in fitting)
    return ProvenBound.by_closed_forms(passing.problem.objective.value_us(Spans(us, us)))


def level_bound_us(passing: WeightPassingProblem, sharded: Sharded) -> int:
    """The best of these bounds of the makespan for one kind of state kept by homes alone."""
    if passing.movement == WeightMovement.RING:
        return ring_bound_us(passing)
    return _gathered(passing, sharded)


def levels_that_may_fit(passing: WeightPassingProblem) -> list[Sharded]:
    """The kinds of state kept by homes alone with which each rank can hold one micro-batch."""
    caps = passing.problem.caps_bytes
    return [
        sharded
        for sharded in passing.levels
        if caps is None or all(map(int.__ge__, caps, needed_bytes(passing, sharded)))
    ]


def needed_bytes(passing: WeightPassingProblem, sharded: Sharded) -> list[int]:
    """The least memory of each rank: what it keeps, and one op of one micro-batch.

    W and BW also hold the sum of their stage's gradients, unless gradients are kept whole. A
    backward in two ops needs that in W, where weights and earlier activations may be gone.
    """
    problem, flow = passing.problem, passing.flow(sharded)
    found = []
    for rank in range(passing.num_ranks):
        below = most = 0
        for number, stage in enumerate(passing.stages):
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


def least_cap_bytes(passing: WeightPassingProblem) -> int:
    """The least memory limit for all ranks that closed forms do not exclude."""
    return min(max(needed_bytes(passing, sharded)) for sharded in passing.levels)


def _gathered(passing: WeightPassingProblem, sharded: Sharded) -> int:
    stages = range(len(passing.stages))
    gathers_us = [passing.gather_us(stage) for stage in stages]
    scatters_us, steps_us = (
        [of(s) for s in stages] for of in (passing.scatter_us, passing.step_us)
    )
    last_us = min(map(sum, zip(scatters_us, steps_us, strict=True)))
    gates_us, backwards = list(accumulate(gathers_us)), backwards_of(passing, sharded)
    rank_us = work_us(passing, gates_us, backwards) + max(last_us, sum(steps_us))
    # Before the last W of any stage there are all forwards; after it, a scatter of each stage.
    first_us = forwards_us(passing, gates_us, passing.rounds)
    first_us += passing.rounds * first_gradient_us(backwards)
    headrooms = passing.headrooms(sharded)
    headroom = None if headrooms is None or sharded != Sharded.WEIGHTS else min(headrooms)
    visits_us = least_visits_us(passing, gathers_us, headroom)
    return max(rank_us, max(first_us, visits_us) + sum(scatters_us) + min(steps_us))
