"""Bounds from micro-batches in flight: by hand, against random schedules, and against optima."""

import random
from dataclasses import replace
from itertools import permutations

import pytest

from synth.costs.costs import uniform_costs
from synth.objective import Objective
from synth.profile.links import Link, Links
from synth.schedule.placements import placement
from synth.solver.bounds.in_flight import in_flight_bounds, preemptive_us
from synth.solver.instance.in_flight import InFlightCap, in_flight_caps
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import exact_alone
from tests.synth.solver.test_solve_placements import random_problem
from tests.synth.tight_problems import optimum_us, tight_problem

NAMES = ["linear", "v", "looped:2", "wave:2", "wave:3", "looped:3", "bidirectional", "odd"]


def problem_of(name: str, num_ranks: int, m: int, held_bytes: int, link_us: int = 0) -> Problem:
    """F = B = W = 100; F keeps two bytes, of which B frees one."""
    where = placement(name, num_ranks)
    costs = uniform_costs(
        where.num_stages,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        links=Links(default=Link(latency_us=link_us)),
        saved_bytes=2,
        saved_w_bytes=1,
    )
    return Problem(costs, where, m, (held_bytes,) * num_ranks, Objective.MAKESPAN)


def test_caps_count_the_stages_above_on_the_same_rank() -> None:
    """Eight bytes are four activations.

    So four micro-batches are in flight on the earlier stage. When F of the later stage adds one, at
    most three are in flight on the earlier stage, and at most two on both.
    """
    caps = in_flight_caps(relaxed_for_fusion(problem_of("v", 2, 8, held_bytes=8)))
    assert caps == [
        InFlightCap(0, 0, 4),
        InFlightCap(3, 0, 3),
        InFlightCap(3, 3, 2),
        InFlightCap(1, 1, 4),
        InFlightCap(2, 1, 3),
        InFlightCap(2, 2, 2),
    ]


def test_one_micro_batch_at_a_time_makes_the_serial_schedule() -> None:
    """Four bytes are two activations: the next micro-batch reaches stage 3 after B of the last.

    It takes 4 F, 4 B and six transfers, and the next F of stage 3 comes after B of stage 3. With
    one in flight on both, B of stage 0 is done before F of stage 3, and F's of the next micro-batch
    go ahead of that by two at most.
    """
    link_us, m = 300, 5
    problem = problem_of("v", 2, m, held_bytes=4, link_us=link_us)
    bound_us = in_flight_bounds(relaxed_for_fusion(problem)).makespan_us
    # From F of stage 3 to that of the next micro-batch: F 3, B 3 … B 0, and two transfers.
    each_us = 5 * 100 + 2 * link_us
    head_us = 3 * 100 + 2 * link_us
    assert bound_us >= head_us + m * each_us + 100
    found = solve(problem, exact_alone(5))
    assert found.value_us is not None and bound_us <= found.value_us


def test_ranks_of_one_stage_have_a_cap_each_and_links_space_what_they_carry() -> None:
    """Four bytes are two activations, so two of eight micro-batches are in flight.

    F 2, F 4 and F 6 of the first stage each start a way there and back after the one before, which
    takes 2 F, 2 B and two transfers. Transfer 7 is that of a link behind transfer 6.
    """
    link_us = 300
    problem = problem_of("linear", 2, 8, held_bytes=4, link_us=link_us)
    instance = relaxed_for_fusion(problem)
    assert in_flight_caps(instance) == [InFlightCap(0, 0, 2), InFlightCap(1, 1, 2)]
    once_us = 4 * 100 + 2 * link_us
    expected_us = 4 * once_us + link_us + 100  # and the last W
    assert in_flight_bounds(instance).makespan_us == expected_us
    found = solve(problem, exact_alone(5))
    assert found.value_us is not None and expected_us <= found.value_us


@pytest.mark.parametrize("name", ["linear", "v", "looped:2"])
def test_nothing_is_said_where_memory_has_no_limit(name: str) -> None:
    problem = problem_of(name, 4, 8, held_bytes=8)
    instance = relaxed_for_fusion(replace(problem, caps_bytes=None))
    assert in_flight_caps(instance) == []
    assert in_flight_bounds(instance) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", sweep(range(800), daily=80))
def test_no_schedule_is_below(name: str, seed: int) -> None:
    """The limits are what the schedule needs."""
    if (tight := tight_problem(seed, name, most_micro_batches=8, slow_links=0.7)) is not None:
        bounds = in_flight_bounds(relaxed_for_fusion(tight.problem))
        assert bounds.makespan_us <= tight.timeline.makespan_us
        assert bounds.period_us <= tight.timeline.period_us


@pytest.mark.parametrize("seed", sweep(range(40), daily=6))
@pytest.mark.parametrize(
    ("name", "num_ranks", "m"), [("linear", 3, 4), ("v", 2, 3), ("wave:2", 2, 3), ("v", 3, 3)]
)
def test_no_bound_is_above_the_optimum(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = random_problem(seed + 9_000, name, num_ranks, m)
    if (least_us := optimum_us(problem)) is not None:
        bounds = in_flight_bounds(relaxed_for_fusion(problem))
        assert problem.objective.value_us(bounds) <= least_us


@pytest.mark.parametrize("seed", range(40))
def test_the_preemptive_schedule_is_above_no_order_and_not_below_any_set_of_jobs(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [(rng.randint(0, 20), rng.randint(0, 9), rng.randint(0, 20)) for _ in range(5)]

    def length_us(order: tuple[tuple[int, int, int], ...]) -> int:
        now_us = longest_us = 0
        for head_us, duration_us, tail_us in order:
            now_us = max(now_us, head_us) + duration_us
            longest_us = max(longest_us, now_us + tail_us)
        return longest_us

    sets = [
        [job for place, job in enumerate(jobs) if 1 << place & which]
        for which in range(1, 1 << len(jobs))
    ]
    of_sets = max(
        min(head for head, _, _ in one) + sum(us for _, us, _ in one) + min(t for _, _, t in one)
        for one in sets
    )
    assert of_sets == preemptive_us(jobs) <= min(map(length_us, permutations(jobs)))
