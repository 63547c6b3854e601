"""List scheduling without a flush: its orders keep the limits, all versions counted."""

import random
from dataclasses import replace
from itertools import islice

import pytest

from benchmarks.flush_free_rival import case
from synth.schedule.model import Buffering, Placement
from synth.schedule.steady_state import steady_us
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.list_orders import fused, list_orders
from synth.solver.flush_free.search import solve_flush_free
from synth.solver.infeasibility import smallest_limit_bytes
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.options import Part, SolveOptions
from synth.solver.problem import Problem
from tests.synth.solver.test_flush_free_search import costs

STASH, TWO_VERSIONS = Consistency.STASH, Consistency.TWO_VERSIONS
VERTICAL = Consistency.VERTICAL


@pytest.mark.parametrize(
    ("consistency", "seed"),
    [
        *((STASH, seed) for seed in range(4)),
        *((TWO_VERSIONS, seed) for seed in (0, 1, 3)),
        *((VERTICAL, seed) for seed in range(4)),
    ],
)
def test_orders_keep_the_limit_with_their_versions(consistency: Consistency, seed: int) -> None:
    rng = random.Random(seed)
    times = [(rng.randint(5, 15), rng.randint(5, 15), rng.randint(3, 15)) for _ in range(3)]
    stages = costs(times, link_us=5, step_us=2, parameters=rng.choice([300, 1000, 1500]))
    free = Problem(stages, Placement.linear(3), 12)
    # Room for an activation, or for a version, but often not for both.
    caps = (smallest_limit_bytes(free) + rng.choice([1000, 1500, 2500]),) * 3
    problem = replace(free, caps_bytes=caps)
    every = 4 if consistency == TWO_VERSIONS else 1
    flush_free = FlushFreeProblem.of(problem, consistency, every)
    found = list(islice(list_orders(flush_free, relaxed_memory(problem), rng), 40))
    orders = [order for order in found if order is not None]
    assert orders
    num_fitting = 0
    for order in orders:
        made = flush_free.schedule(order.programs, Buffering(9, 9))
        judged = evaluate(problem, made, "list scheduling")
        num_fitting += judged is not None
        if judged is None:  # it did not count on a version that the first stage read later
            assert consistency == VERTICAL
            continue
        assert max(judged.peak_bytes) <= caps[0]
        assert sum(map(len, fused(order.programs))) <= sum(map(len, order.programs))
    assert 2 * num_fitting > len(orders)


def test_a_rank_that_waits_for_an_op_it_prefers_keeps_a_burst_together() -> None:
    """The second stage waits 10 for its second F, so that two F's and two B's follow each other.

    No policy that always runs what is ready takes less than 384 here, and independent random list
    schedules take 284.
    """
    problem = case(100)
    orders = islice(list_orders(problem, relaxed_memory(problem.problem), random.Random(0)), 300)
    best = min((one for one in orders if one is not None), key=lambda one: one.us)
    made = problem.schedule(best.programs, Buffering(99, 99))
    judged = evaluate(problem.problem, made, "list scheduling")
    assert judged is not None
    us = steady_us(judged.timeline)
    assert us is not None and us <= 284


@pytest.mark.slow
@pytest.mark.parametrize(("number", "rival_us"), [(4, 156.25), (118, 252.0)])
def test_vertical_sync_is_no_slower_than_random_list_schedules(
    number: int, rival_us: float
) -> None:
    """One version or two activations fit; W's in bursts leave the memory to activations.

    Random list schedules that count both as one memory take 156.25 in the first case, where the
    search found 240 when it counted the versions of the second stage as if they were its own.
    """
    without = frozenset({Part.MODULO})
    options = SolveOptions(5, gap=0.0, deterministic=True, workers=1, without=without)
    found = solve_flush_free(case(number), options)
    assert found.steady is not None and found.steady.us <= rival_us
