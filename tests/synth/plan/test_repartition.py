"""Partitions for recomputing stages: balanced with R included, kept if they are better."""

from itertools import combinations, pairwise

import pytest

from synth.costs.partition_costs import partition_costs
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.plan.partition.balance import balance
from synth.plan.recompute.repartition import repartitioned, solve_repartitioning
from synth.plan.recompute.stages import bounds
from synth.schedule.placements import placement
from synth.schedule.recomputed_stages import recomputed
from synth.schedule.verify import verify
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.solver.watch import SolveWatch
from tests.synth.effort import counted
from tests.synth.plan.test_recompute import profile_that_saves_much

LAYERS = 12
PROFILE = profile_that_saves_much().replace(
    layers=tuple(
        layer.replace(name=f"l{i}")
        for i, layer in enumerate(profile_that_saves_much().layers[:1] * LAYERS)
    )
)


def problem_of(name: str, num_ranks: int, m: int, cap_bytes: int | None = None) -> Problem:
    """Twelve equal layers, cut without a thought of R."""
    where = placement(name, num_ranks)
    caps = None if cap_bytes is None else (cap_bytes,) * num_ranks
    sizes = balance(PROFILE, where, caps, m)
    return Problem(partition_costs(PROFILE, sizes), where, m, caps, Objective.MAKESPAN, sizes)


def largest_work_us(name: str, num_ranks: int, sizes: tuple[int, ...], stages: set[int]) -> int:
    costs, where = partition_costs(PROFILE, sizes).stages, placement(name, num_ranks)
    return max(
        sum(costs[s].work_us + (s in stages) * costs[s].duration_us[OpKind.R] for s, _ in held)
        for held in where.held
    )


@pytest.mark.parametrize(("name", "num_ranks"), [("linear", 4), ("v", 2)])
@pytest.mark.parametrize("stages", [{0}, {0, 1}, {0, 1, 2}, {1, 3}])
def test_with_r_counted_the_busiest_rank_has_as_little_as_in_any_partition(
    name: str, num_ranks: int, stages: set[int]
) -> None:
    every = [
        tuple(b - a for a, b in pairwise((0, *edges, LAYERS)))
        for edges in combinations(range(1, LAYERS), 3)
    ]
    least = min(largest_work_us(name, num_ranks, sizes, stages) for sizes in every)
    chosen = balance(PROFILE, placement(name, num_ranks), None, 4, recompute=stages)
    assert largest_work_us(name, num_ranks, chosen, stages) == least


def test_a_plan_on_the_new_cut_is_shorter_than_any_on_the_old_one() -> None:
    # Six layers take 6 · (30 + 10) = 240 for a micro-batch of the first rank, five take 200.
    problem, heard = problem_of("linear", 2, 16), list[Incumbent]()
    found = solve_repartitioning(PROFILE, problem, (0,), counted(0.1), SolveWatch(heard.append))
    assert found.value_us is not None and found.schedule is not None
    assert (problem.partition, found.problem.partition) == ((6, 6), (5, 7))
    assert found.value_us < bounds(problem, (0,)).makespan_us
    assert found.lower_bound_us <= found.value_us
    verify(found.schedule, found.problem.costs)
    # Listeners hear of each partition, and of no schedule slower than an earlier one.
    values = [incumbent.value_us for incumbent in heard]
    assert values == sorted(values, reverse=True) and values[-1] == found.value_us
    assert {incumbent.problem.partition for incumbent in heard} == {(6, 6), (5, 7)}


@pytest.mark.parametrize("name", ["linear", "v"])
def test_the_chosen_schedule_fits_and_is_bounded_on_its_own_partition(name: str) -> None:
    problem = problem_of(name, 2, 6, 700)
    options = SolveOptions(time_limit_s=2, workers=1)
    found = solve_repartitioning(PROFILE, problem, None, options)
    assert found.schedule is not None and found.value_us is not None
    other = repartitioned(PROFILE, problem, recomputed(found.schedule))
    assert found.problem.partition in (problem.partition, other.partition)
    assert found.problem.costs == partition_costs(PROFILE, found.problem.partition or ())
    assert found.lower_bound_us <= found.value_us
    verify(found.schedule, found.problem.costs, problem.caps_bytes)


def test_where_nothing_recomputes_the_cut_stays() -> None:
    problem = problem_of("linear", 2, 4)
    assert repartitioned(PROFILE, problem, ()) is problem
    found = solve_repartitioning(PROFILE, problem, (), counted(0.1))
    assert found.problem.partition == (6, 6) and found.schedule is not None
    assert not recomputed(found.schedule)
