"""Two copies of a model on two ranks: the solver against every order, also with BW.

All-reduces among the same ranks run in an order that follows from the places of the last W's, and
ranks hold several stage copies, on which the exact model has BW.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.infeasibility import smallest_limit_bytes
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import exact_alone
from tests.synth.solver.test_solve_exact import random_costs

F, B, W, BW = OpKind.F, OpKind.B, OpKind.W, OpKind.BW
NAMES = ("bidirectional", "v", "looped:2")


def two_rank_problem(seed: int) -> Problem:
    """One micro-batch for each copy of the stages, and stages for which BW may be cheaper."""
    rng = random.Random(seed)
    where = placement(rng.choice(NAMES), 2)
    costs = random_costs(rng, where.num_stages, boundary=False, cheap_fusion=True)
    objective = rng.choice([Objective.MAKESPAN, Objective.PERIOD])
    free = Problem(costs, where, len(where.ranks), None, objective)
    cap = smallest_limit_bytes(free) + rng.choice([0, 0, 2, 4, 7, 100])
    return replace(free, caps_bytes=(cap, cap))


def merged(sequences: list[tuple[Op, ...]]) -> Iterator[tuple[Op, ...]]:
    """Yield all orders of the ops of some sequences."""
    if not any(sequences):
        yield ()
    for place, ops in enumerate(sequences):
        if ops:
            rest = [*sequences[:place], ops[1:], *sequences[place + 1 :]]
            yield from ((ops[0], *others) for others in merged(rest))


def rank_orders(problem: Problem, rank: int) -> Iterator[tuple[Op, ...]]:
    """Yield all orders of a rank's ops, with B and W apart or fused."""
    ways = []
    for stage, replica in problem.placement.held[rank]:
        first, _ = problem.share(replica)
        kinds = ((F, B, W), (F, BW))
        ways.append([tuple(Op(kind, stage, first, replica) for kind in one) for one in kinds])
    for sequences in product(*ways):
        yield from merged(list(sequences))


def least_us(problem: Problem) -> int:
    """Return the best value of all orders, by the verifier alone."""
    values = []
    for programs in product(*(list(rank_orders(problem, rank)) for rank in range(2))):
        made = Schedule(
            problem.placement, problem.num_micro_batches, programs, "each", Buffering(9, 9)
        )
        try:
            _, timeline = verify(made, problem.costs, problem.caps_bytes)
        except ScheduleError:
            continue
        values.append(problem.objective.value_us(timeline))
    return min(values)


# In 10 and 11 BW on a rank with two stages counts, in 14 the order of all-reduces.
@pytest.mark.slow
@pytest.mark.parametrize("seed", sweep((10, 11, 14, *range(20, 40)), 3))
def test_the_exact_model_proves_the_best_order_of_all(seed: int) -> None:
    problem = two_rank_problem(seed)
    found = solve(problem, exact_alone(2))
    assert found.value_us == found.lower_bound_us == least_us(problem)
    assert found.stopped_by == StoppedBy.OPTIMAL
