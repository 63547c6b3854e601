"""Topological generations of a graph, and longest paths by them."""

import importlib

import numpy as np
import pytest

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.op_kinds import OpKind
from synth.schedule import Schedule, lower, simulate
from synth.schedule.generations import Generations
from synth.schedule.simulate import DeadlockError

# The package has a function of this name.
simulation = importlib.import_module("synth.schedule.simulate")

# 0 ─┬─> 1 ──> 3 ─┐
#    └─> 2 ───────┴─> 4        5 alone
BEFORE, AFTER = np.array([0, 0, 1, 3, 2]), np.array([1, 2, 3, 4, 4])


def test_a_node_starts_when_the_last_of_its_predecessors_ends() -> None:
    # Durations 1, 2, 9, 3, 4, 5: node 4 waits for node 2, which ends at 1 + 9.
    durations = np.array([1, 2, 9, 3, 4, 5])
    start, end = Generations(BEFORE, AFTER, 6).longest_paths(durations, np.zeros(6, dtype=int))
    assert start.tolist() == [0, 1, 1, 3, 10, 0]
    assert end.tolist() == [1, 3, 10, 6, 14, 5]


def test_scenarios_do_not_mix_and_nothing_starts_before_its_earliest_start() -> None:
    # In the second scenario node 2 takes 1, so that node 4 waits for node 3; node 5 begins at 7.
    durations = np.array([[1, 1], [2, 2], [9, 1], [3, 3], [4, 4], [5, 5]])
    earliest = np.zeros((6, 2), dtype=int)
    earliest[5] = 0, 7
    start, _ = Generations(BEFORE, AFTER, 6).longest_paths(durations, earliest)
    assert start.T.tolist() == [[0, 1, 1, 3, 10, 0], [0, 1, 1, 3, 6, 7]]


def test_nodes_on_a_cycle_and_behind_it_are_not_reached() -> None:
    # 0 ──> 1 ⇄ 2 ──> 3
    before, after = np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3])
    assert Generations(before, after, 4).num_reached == 1


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "chimera", "interleaved:2"])
def test_a_wide_schedule_has_the_times_that_it_has_node_by_node(family: str) -> None:
    schedule = generate(family, 48, 96)
    num_stages = schedule.placement.num_stages
    costs = uniform_costs(num_stages, forward_us=5, backward_input_us=7, backward_weight_us=3)
    lowered = lower(schedule, costs)
    assert simulation._is_wide(lowered)
    by_arrays, one_by_one = simulate(lowered), simulation._one_by_one(lowered)
    assert by_arrays.start_us == one_by_one.start_us
    assert by_arrays.end_us == one_by_one.end_us


def test_a_deadlock_of_a_wide_schedule_is_told() -> None:
    good = generate("gpipe", 48, 48)
    programs = [*good.programs]
    # Rank 5 runs its first backward first, which needs a forward that comes later.
    backward = next(op for op in programs[5] if op.kind == OpKind.BW)
    programs[5] = (backward, *(op for op in programs[5] if op != backward))
    bad = Schedule(good.placement, good.num_micro_batches, tuple(programs))
    lowered = lower(bad, uniform_costs(48, forward_us=5, backward_input_us=7, backward_weight_us=3))
    assert simulation._is_wide(lowered)
    with pytest.raises(DeadlockError):
        simulate(lowered)
