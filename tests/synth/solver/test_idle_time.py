"""Bounds from idle times in warm-up and drain: never above a schedule, and not trivial."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.solver.suites import v_shaped
from synth.costs.costs import Costs, uniform_costs
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.search.outcome import StoppedBy
from synth.solver.bounds.bound import Reference
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.bounds.idle_time import IdleBounds
from synth.solver.bounds.idle_time_agenda import IdleGrowth
from synth.solver.bounds.idle_time_model import Stretch, base_length_us, idle_time_model
from synth.solver.cpsat.run import ModelOutcome, run
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import exact_alone
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_solve_exact import OBJECTIVES
from tests.synth.solver.test_solve_placements import random_problem

NAMES = ["linear", "v", "looped:2", "wave:2", "bidirectional-v"]
OPTIONS = SolveOptions(workers=1, deterministic=True)


def idle_bounds(problem: Problem, value_us: int) -> IdleBounds:
    instance = relaxed_for_fusion(problem)
    work, known = work_bounds(instance), Reference(value_us, None)
    return IdleBounds(instance, problem.objective, OPTIONS, work, lambda: known, lambda: False)


def best_bound(problem: Problem, value_us: int, seconds: float) -> int | None:
    """By all means; None where it is not certain when ranks begin."""
    bounds = idle_bounds(problem, value_us)
    if problem.objective.periods and bounds.instance.origins_us is None:
        return None
    list(bounds.one_by_one(seconds))
    list(bounds.prove(seconds))
    return bounds.bound_us


def test_called_again_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """No solved model is solved again; unsolved ones come first, at either end."""
    bounds = idle_bounds(v_shaped.problem(8, 16, 0.5), 40_000)
    asked: list[IdleGrowth] = []
    solves = iter([True, False, *[True] * 5, *[False] * 3, *[True] * 100])
    solved: list[IdleGrowth] = []

    def answer(_: IdleBounds, growth: IdleGrowth, limit_s: float) -> ModelOutcome:
        asked.append(growth)
        optimal = next(solves)
        solved.extend([growth] * optimal)
        return ModelOutcome(0, None, optimal=optimal, infeasible=False, spent_s=1.0)

    monkeypatch.setattr(IdleBounds, "_solve", answer)
    assert len(list(bounds.prove(2.0))) == 2  # of the pairs, of which there are four
    assert len(list(bounds.prove(8.0))) == 8
    assert asked[1] == asked[2]
    unsolved = asked[7:]
    assert {growth.end.is_opening for growth in unsolved} == {True, False}
    assert len(list(bounds.prove(9.0))) == 9
    for end in {growth.end for growth in unsolved}:
        first = [growth for growth in unsolved if growth.end == end]
        assert [growth for growth in asked[10:] if growth.end == end][: len(first)] == first
    assert len(solved) == len(set(solved)) == 15


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(2, 16),
    st.sampled_from([1, 10, 60]),
    st.sampled_from(OBJECTIVES),
)
def test_no_bound_is_above_a_schedule_of_an_odd_problem(
    seed: int, name: str, num_ranks: int, m: int, longer_steps: int, objective: Objective
) -> None:
    rng = random.Random(seed)
    where = placement(name, num_ranks)
    costs = odd_costs(rng, where.num_stages, num_ranks)
    costs = with_steps(costs, [s.duration_us[OpKind.STEP] * longer_steps for s in costs.stages])
    free = Problem(costs, where, m, None, objective)
    programs = RandomOrders(rng, free).programs()
    try:
        schedule = Schedule(where, m, programs, "random", Buffering(1, 2))
        lowered, timeline = verify(schedule, costs)
    except ScheduleError:  # buffers too small for this order
        return
    value_us = objective.value_us(timeline)
    problem = Problem(costs, where, m, peak_bytes(lowered), objective)
    bound_us = best_bound(problem, 3 * value_us + 10, 0.05)
    assert bound_us is None or bound_us <= value_us


@pytest.mark.parametrize("seed", sweep(range(4), daily=2))
@pytest.mark.parametrize(("name", "num_ranks", "m"), [("v", 2, 3), ("wave:2", 2, 2), ("v", 3, 3)])
def test_no_bound_is_above_the_optimum(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = random_problem(seed + 900, name, num_ranks, m)
    best = solve(problem, exact_alone())
    if best.stopped_by == StoppedBy.OPTIMAL:
        assert best.value_us is not None
        bound_us = best_bound(problem, 2 * best.value_us, 0.2)
        assert bound_us is not None and bound_us <= best.value_us


@pytest.mark.parametrize("step_us", [600, 3000])
@pytest.mark.parametrize("objective", [Objective.MAKESPAN, Objective.PERIOD])
def test_steps_are_no_idle_time(step_us: int, objective: Objective) -> None:
    """A stretch from the beginning that is longer than all ops but the STEPs."""
    free = v_problem(2, 2, 100)
    costs = with_steps(free.costs, [step_us] * len(free.costs.stages))
    problem = replace(free, costs=costs, objective=objective)
    best = solve(problem, exact_alone())
    assert best.stopped_by == StoppedBy.OPTIMAL and best.value_us is not None
    bound_us = best_bound(problem, 2 * best.value_us, 1.0)
    assert bound_us is not None and bound_us <= best.value_us


def with_steps(costs: Costs, steps_us: list[int]) -> Costs:
    """The same with other times of STEP."""
    stages = tuple(
        stage.model_copy(update={"duration_us": {**stage.duration_us, OpKind.STEP: step_us}})
        for stage, step_us in zip(costs.stages, steps_us, strict=True)
    )
    return costs.model_copy(update={"stages": stages})


def v_problem(num_ranks: int, m: int, cap_bytes: int) -> Problem:
    """Equal stages, F = B = W = 100 µs, +2/-1/-1 bytes, 2 µs between ranks."""
    costs = uniform_costs(
        2 * num_ranks,
        forward_us=100,
        backward_input_us=100,
        backward_weight_us=100,
        links=Links(default=Link(latency_us=2)),
        saved_bytes=2,
        saved_w_bytes=1,
    )
    caps = (cap_bytes,) * num_ranks
    return Problem(costs, placement("v", num_ranks), m, caps, Objective.PERIOD)


def test_a_rank_that_may_hold_two_activations_idles_until_the_first_comes_back() -> None:
    """Rank 0 of two has four bytes: one F0, and beside it either F3 or a second F0.

    F0 .........  F3 B3 W3 F0 ... B0   is the best until B0 ends; what the second F0 holds lets no
    0   100-304   304         704 708  second F3 in before.
    """
    instance = relaxed_for_fusion(v_problem(2, 8, 4))
    stretch = Stretch(0, base_length_us(instance, 0) - 100, is_opening=True, is_period=True)
    outcome = run(idle_time_model(instance, stretch, (0,), 100_000), OPTIONS, 20)
    assert outcome.optimal
    assert (stretch.length_us, outcome.bound_us) == (808, 204 + 4)


def test_idle_times_add_to_the_work_of_a_v_under_a_tight_cap() -> None:
    problem = v_problem(4, 16, 8)
    bounds = idle_bounds(problem, 20_000)
    assert bounds.bound_us < 10_200
    assert (best_bound(problem, 20_000, 0.02) or 0) >= 10_300
