"""R as the first part of B does not wait for the gradient: searches time orders as if R were apart.

What `evaluate` says is the truth: it writes R out. Without waits for buffers all agree with it.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from synth.costs.costs import Costs, uniform_costs
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.plan.recompute.given_stages import solve_recomputing, with_merged
from synth.plan.recompute.stages import bounds
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.evaluate import time_kernel, walk_kernel
from synth.solver.evaluate.evaluate import evaluate
from synth.solver.evaluate.op_table import OpTable
from synth.solver.evaluate.order_arrays import order_arrays
from synth.solver.improve.annealing import Walk
from synth.solver.improve.robustness.robustness import improve_robustness
from synth.solver.instance.event_graph import Graph
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.instance.timing import value_us
from synth.solver.problem import Problem
from tests.sweep import sweep
from tests.synth.effort import counted
from tests.synth.odd_problems import RandomOrders, odd_costs

B, BW, R = OpKind.B, OpKind.BW, OpKind.R
AMPLE = Buffering(40, 40)


def odd_recomputing(seed: int, *, clips: bool) -> tuple[Problem, Problem, Schedule]:
    """A random problem, the one that is searched where some stages recompute, and an order.

    Args:
        clips: some R's take longer than the B of the next stage and its transfer.
    """
    rng = random.Random(seed)
    name, num_ranks = rng.choice(("linear", "v", "looped:2", "wave:2")), rng.choice((2, 3, 4))
    where, m = placement(name, num_ranks), rng.randint(1, 5)
    costs = odd_costs(rng, where.num_stages, num_ranks)
    problem = Problem(
        _with_r(costs, rng, most_us=60 if clips else None),
        where,
        m,
        None,
        rng.choice((Objective.MAKESPAN, Objective.PERIOD, Objective.of_iterations(3))),
    )
    programs = RandomOrders(rng, problem).programs()
    stages = {stage for stage in range(where.num_stages) if rng.random() < 0.6}
    return problem, with_merged(problem, stages), Schedule(where, m, programs, "random", AMPLE)


def _with_r(costs: Costs, rng: random.Random, most_us: int | None) -> Costs:
    """Give R a time: at most that of the B's of the next stage, unless another limit is given."""
    stages = []
    for stage, below in zip(costs.stages, [*costs.stages[1:], costs.stages[0]], strict=True):
        limit_us = min(below.duration_us[B], below.duration_us[BW]) if most_us is None else most_us
        duration = {**stage.duration_us, R: rng.randint(0, limit_us)}
        rise = {**stage.rise_bytes, R: rng.randint(0, 8)}
        stages.append(stage.replace(duration_us=duration, rise_bytes=rise))
    return costs.replace(stages=tuple(stages))


def kernel_us(problem: Problem, schedule: Schedule) -> int:
    """The value of all ops timed anew by the compiled code."""
    table = OpTable(problem)
    arrays = order_arrays(table, schedule, [None] * problem.num_ranks, [True] * table.num_copies)
    for rank in range(problem.num_ranks):
        walk_kernel.update_links(arrays, rank)
    return time_kernel.time_orders(arrays)


def graph_us(problem: Problem, schedule: Schedule) -> int:
    """The value by the event graph."""
    instance = relaxed_memory(problem)
    orders = [[(op.stage, op.kind) for op in program] for program in schedule.programs]
    return value_us(orders, Graph(instance), problem.objective)


def test_r_runs_while_the_gradient_is_made_and_sent() -> None:
    """F0 ends at 10, arrives at 15; stage 1 ends B at 15 + 10 + 20 = 45; the gradient comes at 50.

    R0 takes 10 of the 40 that rank 0 waits: B0 ends at 50 + 20, W0 at 80.
    """
    costs = uniform_costs(2, forward_us=10, backward_input_us=20, backward_weight_us=10)
    costs = costs.replace(links=Links(default=Link(latency_us=5)))
    kinds = (OpKind.F, B, OpKind.W)
    programs = tuple(tuple(Op(kind, stage, 0) for kind in kinds) for stage in range(2))
    problem = Problem(costs, Placement.linear(2), 1, None)
    schedule = Schedule(problem.placement, 1, programs, "by hand", AMPLE)
    merged = with_merged(problem, {0})
    true = evaluate(merged, schedule, "by hand")
    assert true is not None
    assert true.value_us == kernel_us(merged, schedule) == graph_us(merged, schedule) == 80


@pytest.mark.parametrize("seed", sweep(range(200), daily=60))
def test_all_judge_orders_as_if_r_were_apart(seed: int) -> None:
    _, merged, schedule = odd_recomputing(seed, clips=False)
    true = evaluate(merged, schedule, "random")
    assert true is not None
    assert kernel_us(merged, schedule) == true.value_us
    assert graph_us(merged, schedule) == true.value_us


@pytest.mark.parametrize("seed", sweep(range(200), daily=60))
def test_a_long_r_is_timed_no_sooner_than_it_may_run(seed: int) -> None:
    """B begins at most as soon as that of the next stage: searched values are no less than true."""
    _, merged, schedule = odd_recomputing(seed, clips=True)
    true = evaluate(merged, schedule, "random")
    assert true is not None
    assert kernel_us(merged, schedule) == graph_us(merged, schedule) >= true.value_us


@pytest.mark.parametrize("seed", sweep(range(120), daily=30))
def test_no_bound_is_above_an_order(seed: int) -> None:
    """The limits are what the order needs."""
    problem, merged, schedule = odd_recomputing(seed, clips=True)
    true = evaluate(merged, schedule, "random")
    assert true is not None and merged.merged is not None
    limited = replace(problem, caps_bytes=true.peak_bytes)
    assert problem.objective.value_us(bounds(limited, merged.merged.stages)) <= true.value_us


@pytest.mark.parametrize("seed", sweep(range(80), daily=20))
def test_after_moves_the_changed_part_is_timed_as_the_whole(seed: int) -> None:
    _, merged, schedule = odd_recomputing(seed, clips=seed % 2 == 0)
    depths = random.Random(seed).choices((0, 1, 2, 40), k=2)
    schedule = replace(schedule, buffering=Buffering(*depths))
    try:
        lowered, _ = verify(schedule, merged.costs)
    except ScheduleError:  # buffers too small for this order
        return
    peaks = enumerate(peak_bytes(lowered))
    headrooms: list[int | None] = [peak + 3 - merged.static_bytes(rank) for rank, peak in peaks]
    table = OpTable(merged)
    walk = Walk(table, schedule, headrooms, [True] * table.num_copies, 0.0)
    rng = np.random.default_rng(seed)
    for temperature_us in (0.0, 1.0, 10.0, 1e9) * 4:
        walk.run(8, temperature_us, 1.0, rng)
        assert walk.value_us == kernel_us(merged, walk.now)


@pytest.mark.parametrize("seed", sweep([28, 46, 72, 55, 91], daily=3))
def test_where_r_takes_long_no_search_ends_with_a_wrong_bound(seed: int) -> None:
    """Schedules take less than models say: bounds of these models are above some schedules."""
    problem, merged, schedule = odd_recomputing(seed, clips=True)
    assert merged.times_r_late and merged.merged is not None
    true = evaluate(merged, schedule, "random")
    assert true is not None
    limited = replace(problem, caps_bytes=tuple(2 * peak for peak in true.peak_bytes))
    found = solve_recomputing(limited, merged.merged.stages, counted(0.05))
    assert found.value_us is not None and found.lower_bound_us <= found.value_us


@pytest.mark.parametrize("seed", sweep(range(12), daily=4))
def test_moves_for_robustness_never_make_an_order_worse_with_r_apart(seed: int) -> None:
    _, merged, schedule = odd_recomputing(seed, clips=False)
    true = evaluate(merged, schedule, "random")
    assert true is not None
    found = improve_robustness(merged, true)
    judged = evaluate(merged, found.schedule, "random")
    assert judged is not None
    assert (found.value_us, found.peak_bytes) == (judged.value_us, judged.peak_bytes)
    assert found.value_us <= true.value_us
    assert max(found.peak_bytes) <= max(true.peak_bytes)
