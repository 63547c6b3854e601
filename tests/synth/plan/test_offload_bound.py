"""The lower bound of schedules that offload, against random schedules and all small ones."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from synth.costs.costs import uniform_costs
from synth.op_kinds import OpKind
from synth.plan.choose.candidates import Candidate, SearchWatch
from synth.plan.offload.lower_bound import offload_bounds
from synth.plan.offload.search import search_with_offloads
from synth.plan.search_space import OneCandidate
from synth.profile.links import Link, Links
from synth.schedule.lowering.lower import lower
from synth.schedule.model import Buffering, Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.bounds.closed_form import work_bounds
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from tests.synth.plain import random_costs, random_schedule

F, B, W, O, L = OpKind.F, OpKind.B, OpKind.W, OpKind.OFFLOAD, OpKind.RELOAD  # noqa: E741


def is_in_order(schedule: Schedule) -> bool:
    """True if every kind of op of every stage takes micro-batches in order."""
    for program in schedule.programs:
        for key in {(op.kind, op.stage) for op in program}:
            done = [op.microbatch for op in program if (op.kind, op.stage) == key]
            if done != sorted(done):
                return False
    return True


@pytest.mark.parametrize("seed", range(5))
def test_no_random_schedule_with_offloads_is_below_the_bound_at_its_own_peaks(seed: int) -> None:
    draw, checked = random.Random(seed), 0
    while checked < 60:
        where = placement(draw.choice(("linear", "looped:2", "v")), draw.randint(1, 4))
        schedule = random_schedule(draw, where=where)
        kinds = {op.kind for program in schedule.programs for op in program}
        if O not in kinds or kinds & {OpKind.R, OpKind.HOST_FOR}:
            continue
        costs = random_costs(draw, where.num_stages, where.num_ranks)
        try:
            lowered, line = verify(schedule, costs)
        except ScheduleError:
            continue
        problem = Problem(costs, where, schedule.num_micro_batches, peak_bytes(lowered))
        bounds = offload_bounds(problem)
        assert bounds.makespan_us <= line.makespan_us
        if is_in_order(schedule):
            assert bounds.period_us <= line.period_us
        checked += 1


def two_ranks(cap: int, move_us: int, m: int = 2) -> Problem:
    """Activations of 10 bytes and little else, on a host link of a given time for one."""
    costs = uniform_costs(
        2,
        forward_us=10,
        backward_input_us=10,
        backward_weight_us=10,
        links=Links(default=Link(latency_us=30), host=Link(latency_us=move_us)),
        saved_bytes=10,
        saved_w_bytes=1,
        output_bytes=1,
    )
    return Problem(costs, Placement.linear(2), m, (cap, 1000))


def test_by_hand_memory_and_link_bound_the_time_of_a_rank() -> None:
    # Rank 0: F's of 10 µs hold 11 bytes. An activation lives 30 + 10 + 10 + 30 + 10 = 90 µs to the
    # end of its B, or 2 · 5 + 10 µs on the rank if it moves, and a byte lives 10 µs from B to W. So
    # 8 micro-batches need 8 · (11 · 10 + 10 · 20 + 10) = 2,560 byte-µs with all of them moved.
    # In 15 bytes that is 171 µs; without moves it would be 8 · (110 + 900 + 10) / 15 = 544.
    problem = two_ranks(15, 5, m=8)
    of_rank = offload_bounds(problem).makespan_us
    free = work_bounds(relaxed_for_fusion(replace(problem, caps_bytes=None))).makespan_us
    assert of_rank == max(171, free)
    # A move of 40 µs leaves no room on the link: x of them take 40 x ≤ T, and save 10 · (90 − 90).
    assert offload_bounds(two_ranks(15, 40, m=8)).makespan_us == 544


def looped(cap: int, move_us: int) -> Problem:
    """One micro-batch of two stages per rank, 10 bytes each; another rank is 5 µs away."""
    costs = uniform_costs(
        4,
        forward_us=10,
        backward_input_us=12,
        backward_weight_us=7,
        links=Links(default=Link(latency_us=5), host=Link(latency_us=move_us)),
        saved_bytes=10,
        saved_w_bytes=2,
        output_bytes=1,
    )
    return Problem(costs, placement("looped:2", 2), 1, (cap, cap))


def orders(rank: int) -> Iterator[tuple[Op, ...]]:
    """Every order of a rank's ops that can end: stages go down before they come up."""
    first, second = rank, rank + 2
    chain = [Op(F, first, 0), Op(F, second, 0), Op(B, second, 0), Op(B, first, 0)]
    for place in (3, 4):
        yield (*chain[:place], Op(W, second, 0), *chain[place:], Op(W, first, 0))
    yield (*chain, Op(W, first, 0), Op(W, second, 0))


def moved(order: tuple[Op, ...], stages: tuple[int, ...]) -> Iterator[tuple[Op, ...]]:
    """The order with every choice of moves of some stages, at every place."""
    if not stages:
        yield order
        return
    stage = stages[0]
    for rest in moved(order, stages[1:]):
        yield rest
        f, b = (rest.index(Op(kind, stage, 0)) for kind in (F, B))
        for o in range(f + 1, b + 1):
            for back in range(o, b + 1):
                between = (*rest[o:back], Op(L, stage, 0), *rest[back:])
                yield (*rest[:o], Op(O, stage, 0), *between)


def optimum_us(problem: Problem) -> int | None:
    """The least makespan of all schedules that keep activations or move them to the host.

    Memory follows from a rank's own program, so that only those that fit are simulated.
    """
    best, caps = None, problem.caps_bytes
    assert caps is not None
    ways = [
        [program for order in orders(rank) for program in moved(order, (rank, rank + 2))]
        for rank in (0, 1)
    ]
    for buffering in (Buffering(*pair) for pair in product((0, 1, 2), (0, 1, 2, 4))):

        def made(first: tuple[Op, ...], second: tuple[Op, ...]) -> Schedule:
            return Schedule(problem.placement, 1, (first, second), "", buffering)  # noqa: B023

        peaks = [peak_bytes(lower(made(one, ways[1][0]), problem.costs))[0] for one in ways[0]]
        firsts = [one for one, peak in zip(ways[0], peaks, strict=True) if peak <= caps[0]]
        peaks = [peak_bytes(lower(made(ways[0][0], one), problem.costs))[1] for one in ways[1]]
        seconds = [one for one, peak in zip(ways[1], peaks, strict=True) if peak <= caps[1]]
        for first, second in product(firsts, seconds):
            try:
                line = verify(made(first, second), problem.costs, caps)[1]
            except ScheduleError:
                continue
            best = line.makespan_us if best is None else min(best, line.makespan_us)
    return best


@pytest.mark.slow
@pytest.mark.parametrize(("cap", "move_us"), [(17, 4), (17, 30), (24, 12)])
def test_on_two_ranks_the_plan_is_the_optimum_and_the_bound_not_above_it(
    cap: int, move_us: int
) -> None:
    problem = looped(cap, move_us)
    options = SolveOptions(time_limit_s=4, workers=1, deterministic=True)
    space = OneCandidate(Candidate("looped:2", problem))
    found = search_with_offloads(space, options, SearchWatch())
    best = optimum_us(problem)
    assert best is not None and found.result.schedule is not None
    assert found.result.value_us == best
    assert found.result.schedule.offloads == (cap == 17)  # which nothing fits without
    assert found.result.lower_bound_us <= best
