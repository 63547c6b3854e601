"""Bounds from the load of links, against closed forms and against random schedules."""

import random
from dataclasses import replace
from itertools import combinations, product

import pytest

from synth.costs.costs import Costs
from synth.objective import Objective
from synth.profile.links import Link, Links, PairLink
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.verify import ScheduleError, verify
from synth.solver.bounds.closed_form import rank_bounds
from synth.solver.bounds.link_load import link_bounds
from synth.solver.cpsat.model import ExactModel
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import exact_alone
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_forward_spacing import any_placement
from tests.synth.solver.test_passing_pairs import any_solution, is_feasible
from tests.synth.solver.test_solve import table_costs

F_US, B_US, W_US = 55, 58, 35


def with_slow_links(costs: Costs, rng: random.Random, num_ranks: int) -> Costs:
    """Return the costs with some links on which all waits."""
    ends = [(a, b) for a, b in product(range(num_ranks), repeat=2) if a != b]
    pairs = tuple(
        PairLink(source=a, target=b, latency_us=rng.choice([20, 100]))
        for a, b in rng.sample(ends, min(len(ends), 2))
    )
    return costs.replace(links=Links(default=Link(latency_us=rng.randint(0, 9)), pairs=pairs))


@pytest.mark.parametrize("name", ["linear", "v", "looped:2", "wave:3", "bidirectional", "odd"])
@pytest.mark.parametrize("seed", sweep(range(120), daily=30))
def test_no_schedule_is_below(name: str, seed: int) -> None:
    rng = random.Random(seed)
    num_ranks, m = rng.choice([2, 4]), rng.randint(2, 7)
    where = any_placement(rng, name, num_ranks)
    costs = with_slow_links(odd_costs(rng, where.num_stages, where.num_ranks), rng, where.num_ranks)
    problem = Problem(costs, where, m)
    programs = RandomOrders(rng, problem).programs()
    try:
        _, timeline = verify(Schedule(where, m, programs, "random", Buffering(9, 9)), costs)
    except ScheduleError:  # buffers too small for this order
        return
    bounds = link_bounds(relaxed_for_fusion(problem))
    assert bounds.makespan_us <= timeline.makespan_us
    assert bounds.period_us <= timeline.period_us


@pytest.mark.parametrize(("num_ranks", "m"), [(2, 1), (2, 5), (3, 4), (4, 7), (5, 6)])
def test_a_slow_link_everywhere_is_the_whole_bound(num_ranks: int, m: int) -> None:
    """A micro-batch goes down and up in n (F + B) + 2 (n − 1) c + W, the others c apart."""
    link_us = 400
    costs = table_costs(num_ranks).replace(links=Links(default=Link(latency_us=link_us)))
    problem = Problem.linear(costs, m)
    alone_us = num_ranks * (F_US + B_US) + 2 * (num_ranks - 1) * link_us + W_US
    expected_us = alone_us + (m - 1) * link_us
    assert link_bounds(relaxed_for_fusion(problem)).makespan_us == expected_us
    found = solve(problem, exact_alone(5))
    assert (found.value_us, found.gap) == (expected_us, 0)


@pytest.mark.parametrize("m", [5, 8])
def test_both_chunks_of_a_v_share_the_slow_link(m: int) -> None:
    """Of four ranks, from 1 to 2: activations of the first chunk, gradients of the second."""
    slow_us = 500
    links = Links(
        default=Link(),
        pairs=tuple(PairLink(source=a, target=b, latency_us=slow_us) for a, b in [(1, 2), (2, 1)]),
    )
    problem = Problem(table_costs(8).replace(links=links), placement("v", 4), m)
    head_us = 2 * F_US
    # Last comes a gradient: it goes up from stage 5, over the slow link again to stage 1.
    tail_us = 6 * B_US + slow_us + W_US
    least_us = head_us + 2 * m * slow_us + tail_us
    assert link_bounds(relaxed_for_fusion(problem)).makespan_us == least_us
    found = solve(problem, exact_alone(5))
    assert found.value_us is not None
    assert least_us <= found.value_us <= 1.1 * least_us


@pytest.mark.parametrize("name", ["linear", "v", "bidirectional"])
def test_no_bound_where_transfers_take_no_time(name: str) -> None:
    where = placement(name, 4)
    problem = Problem(table_costs(where.num_stages).replace(links=Links()), where, 8)
    instance = relaxed_for_fusion(problem)
    for of_links, *of_ranks in zip(link_bounds(instance), *rank_bounds(instance), strict=True):
        assert of_links <= max(of_ranks)


def test_the_period_of_a_rank_counts_from_its_own_start() -> None:
    costs = table_costs(3).replace(links=Links(default=Link(latency_us=400)))
    problem = replace(Problem.linear(costs, 6), objective=Objective.PERIOD)
    bounds = link_bounds(relaxed_for_fusion(problem))
    # Rank 0 begins at 0; it waits for all that comes back.
    assert bounds.period_us == bounds.makespan_us
    found = solve(problem, exact_alone(5))
    assert (found.value_us, found.gap) == (bounds.period_us, 0)


@pytest.mark.parametrize("name", ["linear", "v", "looped:2", "bidirectional", "odd"])
@pytest.mark.parametrize("seed", sweep(range(60), daily=12))
def test_no_model_of_some_ranks_excludes_a_schedule(name: str, seed: int) -> None:
    rng = random.Random(seed)
    num_ranks, m = rng.choice([2, 4]), rng.randint(2, 6)
    where = any_placement(rng, name, num_ranks)
    costs = with_slow_links(odd_costs(rng, where.num_stages, where.num_ranks), rng, where.num_ranks)
    instance = relaxed_for_fusion(Problem(costs, where, m))
    known = any_solution(rng, instance)
    for size in (1, 2):
        for scope in combinations(range(where.num_ranks), size):
            model = ExactModel(instance, Objective.MAKESPAN, 10**6, scope)
            for key, variable in model.ops.start.items():
                model.cp.add(variable == known.starts[key])
            model.cp.add(model.value <= known.value_us(instance, Objective.MAKESPAN))
            assert is_feasible(model)
