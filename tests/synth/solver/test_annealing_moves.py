"""The local search judges moves to the host's memory as the verifier and the simulator do."""

import random
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from synth.costs.costs import uniform_costs
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.profile.links import Link, Links
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.verify import ScheduleError, verify
from synth.solver.evaluate import memory_kernel, time_kernel, walk_kernel
from synth.solver.evaluate.op_table import NONE, OpTable
from synth.solver.evaluate.order_arrays import order_arrays, programs_of
from synth.solver.improve.annealing import Annealing, Walk
from synth.solver.infeasibility import serial_schedule
from synth.solver.problem import Problem
from tests.sweep import sweep
from tests.synth.odd_problems import RandomOrders, odd_costs
from tests.synth.solver.test_annealing import DEPTHS, OBJECTIVES, PLACEMENTS, check_walk

O, L = OpKind.OFFLOAD, OpKind.RELOAD  # noqa: E741


def odd_moves(seed: int) -> tuple[Problem, Schedule]:
    """A random problem, and random orders of it in which random activations move."""
    rng = random.Random(seed)
    name = rng.choice(PLACEMENTS)
    ranks = rng.choice([2, 4] if name.startswith("bi") else [2, 3, 4])
    where = placement(name, ranks)
    m = rng.randint(len(where.ranks), 5)
    costs = odd_costs(rng, where.num_stages, ranks)
    host = Link(latency_us=rng.randint(0, 30), bandwidth_bytes_per_s=rng.choice((None, 5e5)))
    costs = costs.replace(links=costs.links.replace(host=host))
    problem = Problem(costs, where, m, None, rng.choice(OBJECTIVES))
    programs = tuple(with_moves(rng, list(ops)) for ops in RandomOrders(rng, problem).programs())
    buffering = Buffering(rng.choice(DEPTHS), rng.choice(DEPTHS))
    return problem, Schedule(where, m, programs, "random", buffering)


def with_moves(rng: random.Random, program: list[Op]) -> tuple[Op, ...]:
    """Let about half of the activations move, O and L anywhere between F and B."""
    for op in [op for op in program if op.kind == OpKind.F and rng.random() < 0.5]:
        begin = program.index(op)
        last = next(
            at
            for at, one in enumerate(program)
            if one[1:] == op[1:] and one.kind in (OpKind.B, OpKind.BW)
        )
        out = rng.randint(begin + 1, last)
        program.insert(rng.randint(out, last), op._replace(kind=L))
        program.insert(out, op._replace(kind=O))
    return tuple(program)


@pytest.mark.parametrize("seed", sweep(range(80), daily=40))
def test_memory_and_value_with_moves_are_those_of_verifier_and_simulator(seed: int) -> None:
    problem, schedule = odd_moves(seed)
    table = OpTable(problem)
    arrays = order_arrays(table, schedule, [None] * problem.num_ranks, [True] * table.num_copies)
    for rank in range(problem.num_ranks):
        walk_kernel.update_links(arrays, rank)
    value = time_kernel.time_orders(arrays)
    again = replace(schedule, programs=programs_of(table, arrays))
    try:
        lowered, timeline = verify(schedule, problem.costs)
    except ScheduleError as error:
        assert "deadlock" in str(error)
        assert value == NONE
        return
    assert value == problem.objective.value_us(timeline)
    ranks = range(problem.num_ranks)
    peaks = (memory_kernel.peak_bytes(arrays, rank) + problem.static_bytes(rank) for rank in ranks)
    assert tuple(peaks) == peak_bytes(lowered)
    lowered, timeline = verify(again, problem.costs)
    assert value == problem.objective.value_us(timeline)


# Of the last two, gradients of copies are added up in no time, and STEPs wait for that.
@pytest.mark.parametrize("seed", [*sweep(range(80, 200), daily=60), 1249, 1334])
def test_so_are_they_after_random_changes_of_ops_and_moves(seed: int) -> None:
    check_walk(*odd_moves(seed), seed, rounds=8, host_share=0.5)


def test_for_the_period_every_kind_stays_in_order_of_micro_batches() -> None:
    """A B is fused with its W past an older W, and is not split again before that."""
    for seed in range(20):
        rng = random.Random(seed)
        where = placement(rng.choice(["linear", "v", "looped:2"]), 2)
        problem = Problem(odd_costs(rng, where.num_stages, 2), where, 4, None, Objective.PERIOD)
        table = OpTable(problem)
        walk = Walk(table, serial_schedule(problem), [None] * 2, [True] * table.num_copies)
        walk.run(3_000, 5.0, 1.0, np.random.default_rng(seed))
        for program in (*walk.now.programs, *walk.best.programs):
            for op, later in combinations(program, 2):
                if (op.kind, op.stage, op.replica) == (later.kind, later.stage, later.replica):
                    assert op.microbatch < later.microbatch


def test_with_a_link_to_the_host_annealing_moves_what_does_not_fit() -> None:
    """Four ranks with room for three activations, of which the first rank would hold four."""
    costs = uniform_costs(
        4,
        forward_us=12,
        backward_input_us=12,
        backward_weight_us=12,
        links=Links(default=Link(latency_us=1), host=Link(latency_us=6)),
        saved_bytes=20,
        output_bytes=1,
    )
    tight, values = Problem.linear(costs, 8, 64), []
    for moves_activations in (False, True):
        search = Annealing(tight, 0, moves_activations=moves_activations)
        search.add(serial_schedule(tight).programs)
        *_, best = search.run(10_000_000, lambda: False)
        values.append(best.value_us)
        assert best.schedule.offloads == moves_activations
    assert values[1] < values[0]
