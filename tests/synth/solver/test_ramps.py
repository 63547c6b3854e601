"""Bounds from warm-up and cooldown: by hand, against random schedules, and against optima."""

import pytest

from synth.solver.bounds.closed_form import rank_bound, rank_bounds
from synth.solver.bounds.ramps import ramp_bounds
from synth.solver.instance.memory_models import relaxed_for_fusion
from tests.sweep import sweep
from tests.synth.solver.test_in_flight import NAMES, problem_of
from tests.synth.solver.test_solve_placements import random_problem
from tests.synth.tight_problems import optimum_us, tight_problem


def test_memory_for_four_forwards_leaves_a_v_idle_at_both_ends() -> None:
    """Rank 0 of four has stages 0 and 7, 16 micro-batches, and room for four activations.

    Its first B, of stage 7, comes after 8 F of 100, and four of them fit before it: 400 idle.
    After its last F, of stage 7, eight B's and a W follow, and four B's and W's are left: 100 idle.
    """
    instance = relaxed_for_fusion(problem_of("v", 4, 16, held_bytes=8))
    work_us = 16 * 2 * 300
    assert ramp_bounds(instance, 0, 800, is_period=False) == [400 + work_us, 500 + work_us]
    assert rank_bound(instance, 0).makespan_us == 500 + work_us


def test_where_all_forwards_fit_only_the_first_b_is_waited_for() -> None:
    """Before the first B all eight F's of two stages run, and after it all B's and W's may."""
    instance = relaxed_for_fusion(problem_of("v", 4, 4, held_bytes=16))
    work_us = 4 * 2 * 300
    # F of stage 0 is first at 0, and after the last F 900 follow, which 8 B's and W's fill.
    assert ramp_bounds(instance, 0, 800, is_period=False) == [work_us, work_us - 1600 + 900]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", sweep(range(800), daily=60))
def test_no_schedule_is_below(name: str, seed: int) -> None:
    """The limits are what the schedule needs."""
    if (tight := tight_problem(seed, name, most_micro_batches=8, slow_links=0.7)) is not None:
        for bounds in rank_bounds(relaxed_for_fusion(tight.problem)):
            assert bounds.makespan_us <= tight.timeline.makespan_us
            assert bounds.period_us <= tight.timeline.period_us


@pytest.mark.parametrize("seed", sweep(range(40), daily=6))
@pytest.mark.parametrize(
    ("name", "num_ranks", "m"), [("linear", 3, 4), ("v", 2, 3), ("wave:2", 2, 3), ("v", 3, 3)]
)
def test_no_bound_is_above_the_optimum(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = random_problem(seed + 7_000, name, num_ranks, m)
    if (least_us := optimum_us(problem)) is not None:
        for bounds in rank_bounds(relaxed_for_fusion(problem)):
            assert problem.objective.value_us(bounds) <= least_us
