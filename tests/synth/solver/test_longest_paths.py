"""Longest paths that follow random moves are those of the order that the walk has reached."""

from dataclasses import replace

import numpy as np
import pytest

from synth.objective import Objective
from synth.schedule.verify import ScheduleError, verify
from synth.solver.evaluate import path_kernel, time_kernel, walk_kernel
from synth.solver.evaluate.op_table import NONE, OpTable
from synth.solver.evaluate.order_arrays import PLACE, READER, OrderArrays, order_arrays
from synth.solver.evaluate.path_arrays import TAIL
from synth.solver.improve.annealing import Walk
from tests.sweep import sweep
from tests.synth.solver.test_annealing import odd_schedule


def walks_of(seed: int, host_share: float = 0.0) -> Walk | None:
    """A walk from random orders with the objective makespan; None if they wait for each other."""
    problem, schedule = odd_schedule(seed)
    problem = replace(problem, objective=Objective.MAKESPAN)
    try:
        verify(schedule, problem.costs)
    except ScheduleError:
        return None
    table = OpTable(problem)
    headrooms: list[int | None] = [None] * problem.num_ranks
    return Walk(table, schedule, headrooms, [True] * table.num_copies, host_share)


def paths_of(table: OpTable, arrays: OrderArrays) -> list[tuple[int, int]]:
    """The heads and tails of all ops that are in the programs, and of their transfers."""
    ops = [op for op in range(table.num_split) if arrays.ops[op, PLACE] != NONE]
    nodes = ops + [table.num_ops + op for op in ops if arrays.ops[op, READER] != NONE]
    return [(int(arrays.heads[node]), int(arrays.paths.nodes[node, TAIL])) for node in nodes]


@pytest.mark.parametrize("seed", sweep(range(300, 400), daily=30))
def test_heads_and_tails_are_those_found_anew(seed: int) -> None:
    walk = walks_of(seed)
    if walk is None:
        return
    rng, table = np.random.default_rng(seed), walk.table
    for temperature_us in (0.0, 3.0, 30.0, 1e9) * 3:
        walk.run(8, temperature_us, 1.0, rng)
        headrooms = [None] * walk.schedule.num_ranks
        anew = order_arrays(table, walk.now, headrooms, [True] * table.num_copies)
        for rank in range(walk.schedule.num_ranks):
            walk_kernel.update_links(anew, rank)
        assert time_kernel.time_orders(anew) == walk.value_us
        time_kernel.keep(anew)
        path_kernel.find_tails(anew)
        found = paths_of(table, walk.arrays)
        assert found == paths_of(table, anew)
        assert all(head + tail <= walk.value_us for head, tail in found)


def test_it_makes_nearly_all_moves_that_it_makes_where_orders_are_timed_anew() -> None:
    num_moves = num_refused = 0
    for seed in range(400, 408):
        walk = walks_of(seed)
        rng = np.random.default_rng(seed)
        for step in range(80 if walk is not None else 0):
            assert walk is not None
            drawn, temperature_us = int(rng.integers(1 << 40)), (0.0, 3.0, 30.0)[step % 3]
            table, now = walk.table, walk.now
            headrooms: list[int | None] = [None] * walk.schedule.num_ranks
            # A walk that may move activations to the host's memory times all orders anew.
            walks = [
                Walk(table, now, headrooms, [True] * table.num_copies, host_share)
                for host_share in (0.0, 1e-12)
            ]
            made = [one.run(1, temperature_us, 1.0, np.random.default_rng(drawn)) for one in walks]
            assert made[0] <= made[1]
            if made[0] == made[1]:
                assert walks[0].value_us == walks[1].value_us
            num_refused += made[1] - made[0]
            num_moves += made[1]
            walk = walks[1]
    assert num_moves > 100 * num_refused
