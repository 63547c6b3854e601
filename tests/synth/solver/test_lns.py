"""Windows re-solved one or several at a time: what they keep, and that they end."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.solver.suites import table
from synth.costs.costs import Costs
from synth.schedule.placements import placement
from synth.solver.evaluate import evaluate
from synth.solver.improve.lns import search
from synth.solver.improve.lns.window_model import Change
from synth.solver.infeasibility import serial_schedule
from synth.solver.instance.instance import SPLIT
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.instance.timing import keeps_caps, split, timing_of
from synth.solver.problem import Problem
from tests.sweep import sweep
from tests.synth.odd_problems import odd_costs


def lasting(costs: Costs) -> Costs:
    """No F, B or W in no time: the order of those at one moment is not known from their starts."""
    stages = tuple(
        stage.replace(
            duration_us={kind: us + (kind in SPLIT) for kind, us in stage.duration_us.items()}
        )
        for stage in costs.stages
    )
    return costs.replace(stages=stages)


def improved(problem: Problem, workers: int, seconds: float = 0.5) -> list[int]:
    """From micro-batch after micro-batch: the value at first and after each better solution."""
    return improve(problem, workers, seconds)[0]


def improve(
    problem: Problem, workers: int, seconds: float, patience_s: float = math.inf
) -> tuple[list[int], search.LnsResult]:
    """The same, and the answer."""
    instance, objective = relaxed_memory(problem), problem.objective
    start = timing_of(split(serial_schedule(problem).programs, instance), instance)
    assert keeps_caps(start.programs(instance), instance)
    values = [start.value_us(instance, objective)]
    better = search.improve(
        instance,
        objective,
        [start],
        search.EffortLimits(seconds, workers, lambda: False, patience_s),
        0,
        lambda timing: values.append(timing.value_us(instance, objective)),
    )
    assert keeps_caps(better.timing.programs(instance), instance)
    assert better.timing.value_us(instance, objective) == values[-1]
    return values, better


@pytest.mark.parametrize("workers", [1, 4])
def test_windows_overlap_what_was_one_after_the_other(workers: int) -> None:
    values = improved(table.problem(4, 8, 0.75), workers)
    assert all(later < earlier for earlier, later in pairwise(values))
    least_us = table.KNOWN[4, 8, 0.75].bound_us
    assert values[0] > 2 * least_us
    assert least_us <= values[-1] <= 1.02 * least_us


@pytest.mark.parametrize(("workers", "problems"), sweep([(1, 6), (3, 2), (3, 6)], daily=2))
def test_windows_of_odd_problems_end_and_keep_the_caps(workers: int, problems: int) -> None:
    found = 0
    for seed in range(problems):
        problem = Problem(lasting(odd_costs(random.Random(seed), 4, 2)), placement("v", 2), 4)
        serial = evaluate.evaluate(problem, serial_schedule(problem), "serial")
        assert serial is not None
        caps = tuple(2 * peak for peak in serial.peak_bytes)
        values = improved(replace(problem, caps_bytes=caps), workers, seconds=0.2)
        assert values == sorted(values, reverse=True)
        found += values[-1] < values[0]
    assert found


@pytest.mark.parametrize("workers", [1, 3])
def test_windows_end_when_they_have_gained_nothing_for_a_while(workers: int) -> None:
    problem, seconds, patience_s = table.problem(8, 16, 0.75), 20.0, 0.1
    values, found = improve(problem, workers, seconds, patience_s)
    assert values[-1] < values[0]
    assert patience_s <= found.spent_s < seconds / 2
    assert not found.is_exhausted


@pytest.mark.parametrize("workers", [1, 2])
def test_windows_end_when_none_is_left_to_try(workers: int) -> None:
    _, found = improve(table.problem(2, 4, 1), workers, 600.0)
    assert found.is_exhausted
    assert found.spent_s < 300


def test_one_at_a_time_can_be_repeated() -> None:
    runs = [improved(table.problem(4, 8, 1), 1, seconds=0.1) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 2


def test_a_change_is_refused_where_another_has_been() -> None:
    change = Change(0, 1, [5, 6], [6, 5])
    assert change.apply([4, 5, 6, 7]) == [4, 6, 5, 7]
    assert change.apply([4, 6, 5, 7]) is None
