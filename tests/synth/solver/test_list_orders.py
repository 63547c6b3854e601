"""List scheduling without a flush: its orders keep the limits, all versions counted."""

import random
from dataclasses import replace
from itertools import islice

import pytest

from synth.schedule.model import Buffering, Placement
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.list_orders import fused, list_orders
from synth.solver.infeasibility import smallest_limit_bytes
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.problem import Problem
from tests.synth.solver.test_flush_free_search import costs

STASH, TWO_VERSIONS = Consistency.STASH, Consistency.TWO_VERSIONS


@pytest.mark.parametrize(
    ("consistency", "seed"),
    [*((STASH, seed) for seed in range(4)), *((TWO_VERSIONS, seed) for seed in (0, 1, 3))],
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
    for order in orders:
        made = flush_free.schedule(order.programs, Buffering(9, 9))
        judged = evaluate(problem, made, "list scheduling")
        assert judged is not None
        assert max(judged.peak_bytes) <= caps[0]
        assert sum(map(len, fused(order.programs))) <= sum(map(len, order.programs))
