"""The period is the time per iteration: iterations back to back take no longer."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.solver.back_to_back import executed_period_us, iteration_ends_us
from synth.costs.costs import uniform_costs
from synth.families import generate_for
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.simulate import Timeline
from synth.schedule.verify import ScheduleError, verify
from synth.solver.options import SolveOptions
from synth.solver.solver import solve
from tests.synth import plain
from tests.synth.naive import Naive, random_schedule
from tests.synth.solver.test_solve_placements import random_problem

PLACEMENTS = ["linear", "v", "looped:2", "wave:2", "bidirectional", "bidirectional-v"]


def check_claims(timeline: Timeline) -> None:
    """One iteration takes the makespan, each further one at most the period."""
    for overlap, claim_us in ((True, timeline.period_us), (False, executed_period_us(timeline))):
        ends_us = iteration_ends_us(timeline.lowered, 3, overlap=overlap)
        assert ends_us[0] == timeline.makespan_us
        assert ends_us[1] <= timeline.makespan_us + claim_us
        assert ends_us[2] <= timeline.makespan_us + 2 * claim_us


def two_ranks() -> Timeline:
    """F 3, B 1 and transfers 1; W 2 on rank 0, and 10 on rank 1, which so sets the pace."""
    links = Links(default=Link(latency_us=1))
    costs = uniform_costs(2, forward_us=3, backward_input_us=1, backward_weight_us=2, links=links)
    slow = costs.stages[1].replace(duration_us={**costs.stages[1].duration_us, OpKind.W: 10})
    costs = costs.replace(stages=(costs.stages[0], slow))
    programs = [[Op(kind, stage) for kind in (OpKind.F, OpKind.B, OpKind.W)] for stage in (0, 1)]
    return verify(Schedule.linear("by hand", 1, programs), costs)[1]


def test_with_overlap_a_rank_begins_again_where_it_ends() -> None:
    # rank 0  FFF......BWW|FFF......BWW      0 … 12, 12 … 28
    # rank 1  ....FFFBWWWWWWWWWW|FFFBWW…     4 … 18, 18 … 32: F's input was there at 16
    timeline = two_ranks()
    assert timeline.period_us == 14
    assert iteration_ends_us(timeline.lowered, 3, overlap=True) == [18, 32, 46]


def test_without_overlap_the_first_receive_is_posted_behind_the_last_op() -> None:
    # rank 1 posts at 18; the input then sets out and is there at 19: 15 per iteration.
    timeline = two_ranks()
    assert executed_period_us(timeline) == 15
    assert iteration_ends_us(timeline.lowered, 3) == [18, 33, 48]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_random_schedules_keep_their_period(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng)
    try:
        _, timeline = verify(
            schedule, plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
        )
    except ScheduleError:
        return  # its ranks wait for each other
    check_claims(timeline)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 3))
def test_iterations_are_those_of_one_long_program(seed: int, num_iterations: int) -> None:
    """With unlimited buffers, so that it does not matter when to post and to wait."""
    rng = random.Random(seed)
    schedule = replace(random_schedule(rng), buffering=Buffering(10**6, 10**6))
    costs = plain.random_costs(rng, schedule.placement.num_stages, schedule.num_ranks)
    try:
        lowered, _ = verify(schedule, costs)
    except ScheduleError:
        return
    times = Naive(one_long_program(lowered.ops, schedule, num_iterations), costs).run()
    assert times is not None
    last_us = max(times[rank][-1][1] for rank in range(schedule.num_ranks))
    assert iteration_ends_us(lowered, num_iterations, overlap=True)[-1] == last_us


def one_long_program(
    programs: Sequence[Sequence[Op]], schedule: Schedule, num_iterations: int
) -> Schedule:
    """All iterations' ops behind each other, micro-batches numbered through."""
    m = schedule.num_micro_batches
    long = tuple(
        tuple(
            op if op.kind == OpKind.STEP else op._replace(microbatch=op.microbatch + k * m)
            for k in range(num_iterations)
            for op in program
        )
        for program in programs
    )
    return replace(schedule, num_micro_batches=m * num_iterations, programs=long)


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize(("num_ranks", "m"), [(2, 2), (4, 4), (4, 9)])
def test_every_family_keeps_its_period(name: str, num_ranks: int, m: int) -> None:
    where = placement(name, num_ranks)
    costs = plain.random_costs(random.Random(m), where.num_stages, num_ranks)
    caps = [10**6] * num_ranks
    made = list(generate_for(where, m, costs, caps))
    assert made
    for _, schedule in made:
        check_claims(verify(schedule, costs)[1])


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("count", [2, 5])
def test_so_many_iterations_take_no_longer_than_the_value_found_for_them(
    name: str, count: int
) -> None:
    objective = Objective.of_iterations(count)
    asked = replace(random_problem(count, name, 3, 6, boundary=True), objective=objective)
    result = solve(asked, SolveOptions(time_limit_s=0.5, workers=1))
    assert result.timeline is not None and result.value_us is not None
    ends_us = iteration_ends_us(result.timeline.lowered, count, overlap=True)
    assert ends_us[-1] <= result.value_us


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("seed", range(2))
def test_what_the_solver_finds_keeps_its_period(name: str, seed: int) -> None:
    asked = replace(random_problem(seed, name, 3, 6, boundary=True), objective=Objective.PERIOD)
    result = solve(asked, SolveOptions(time_limit_s=0.5, workers=1))
    assert result.timeline is not None and result.schedule is not None
    assert result.value_us == result.timeline.period_us
    check_claims(result.timeline)
