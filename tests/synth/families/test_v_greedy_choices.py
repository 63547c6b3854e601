"""Runs of ZB-V's greedy that stand for several choices."""

import random
from functools import partial
from typing import Any

import pytest

from synth.families._lib.v_greedy import (
    ALL_CHOICES,
    RunsByChoice,
    VGreedyChoices,
    VGreedyRun,
    repeated_run,
)
from synth.families._lib.v_passes import PassCosts, units_bytes


def random_costs(seed: int) -> PassCosts:
    """Four ranks with times of their own, which leave gaps of many lengths."""
    rng = random.Random(seed)
    took = tuple(tuple(rng.randint(5, 60) for _ in range(4)) for _ in range(6))
    lag = tuple(tuple(rng.randint(0, 30) for _ in range(4)) for _ in range(4))
    grown = tuple((size,) * 4 for size in (10, 10, -4, -4, -6, -6))
    return PassCosts(8, took, lag, grown)


def run_of(pass_costs: PassCosts, limits: list[int], choices: VGreedyChoices) -> VGreedyRun:
    run = VGreedyRun(pass_costs, limits, choices)
    run.run()
    return run


@pytest.mark.parametrize("make", [run_of, repeated_run])
def test_a_run_stands_for_all_choices_with_which_it_is_the_same(make: Any) -> None:
    made, shared = 0, 0
    for seed in range(40):
        costs = random_costs(seed)
        limits = [8 * unit for unit in units_bytes(costs)]
        runs = RunsByChoice(partial(make, costs))
        found = [runs.at(limits, choices) for choices in ALL_CHOICES]
        fresh = [make(costs, limits, choices) for choices in ALL_CHOICES]
        assert [run.programs for run in found] == [run.programs for run in fresh]
        assert [run.short_bytes for run in found] == [run.short_bytes for run in fresh]
        made += len({id(run) for run in found})
        shared += len(found) - len({id(run) for run in found})
    assert made > 40  # choices matter
    assert shared > 0
