"""Scenarios in which ops take other times, and moves of ops that help there."""

from dataclasses import replace

import numpy as np
import pytest

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.objective import Objective
from synth.op_kinds import VISITS, OpKind
from synth.schedule.arrays import KIND_CODES
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.verify import verify
from synth.solver.evaluate import scenarios
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.evaluate.scenarios import ScenarioFactors, ScenarioTimes
from synth.solver.improve.robustness.robustness import improve_robustness
from synth.solver.infeasibility import serial_schedule
from synth.solver.problem import Problem
from tests.synth.solver.test_solve_placements import random_problem

W = OpKind.W
OBJECTIVES = [Objective.MAKESPAN, Objective.PERIOD, Objective.of_iterations(3)]
PLACEMENTS = ["linear", "v", "looped:2", "bidirectional"]


def family(name: str, objective: Objective, num_ranks: int = 4, m: int = 12) -> EvaluatedSchedule:
    """A published schedule with its memory as the cap."""
    problem = family_problem(objective, num_ranks, m)
    found = evaluate(problem, generate(name, num_ranks, m), name)
    assert found is not None
    return found


def family_problem(objective: Objective, num_ranks: int = 4, m: int = 12) -> Problem:
    costs = uniform_costs(num_ranks, forward_us=55, backward_input_us=58, backward_weight_us=35)
    return Problem.linear(costs, m, objective=objective)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_in_the_world_without_luck_everything_is_as_simulated(
    name: str, objective: Objective
) -> None:
    problem = replace(random_problem(3, name, 2, 4, boundary=True), objective=objective)
    _, timeline = verify(serial_schedule(problem), problem.costs)
    scenarios = ScenarioTimes(timeline.lowered, ScenarioFactors(problem), objective)
    assert scenarios.start_us[:, 0].tolist() == timeline.start_us
    assert scenarios.end_us[:, 0].tolist() == timeline.end_us
    value_us = sum(span.weight * span.length_us[0] for span in scenarios.spans)
    assert value_us == objective.value_us(timeline)


def test_luck_does_not_depend_on_kinds_of_ops_that_a_plan_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or else a new kind of op would change plans."""
    problem = family_problem(Objective.MAKESPAN)
    lowered, _ = verify(generate("1f1b", 4, 12), problem.costs)
    longer = ScenarioFactors(problem).durations_us(lowered)
    without_visits = {kind: code for kind, code in KIND_CODES.items() if kind not in VISITS}
    monkeypatch.setattr(scenarios, "VISITS", ())
    monkeypatch.setattr(scenarios, "KIND_CODES", without_visits)
    assert np.array_equal(longer, ScenarioFactors(problem).durations_us(lowered))


def test_luck_belongs_to_ops_and_not_to_their_places() -> None:
    problem = family_problem(Objective.MAKESPAN)
    scenario_factors = ScenarioFactors(problem)
    factors = []
    for name in ("1f1b", "gpipe"):
        lowered, _ = verify(generate(name, 4, 12), problem.costs)
        longer = scenario_factors.durations_us(lowered) / np.maximum(1, lowered.durations)[:, None]
        ops = (op for program in lowered.ops for op in program)
        factors.append({op: tuple(row) for op, row in zip(ops, longer, strict=False)})
    assert factors[0] == factors[1]


def test_ways_behind_ops_are_as_long_as_the_schedule_is() -> None:
    scenarios = ScenarioTimes(
        family("zb-h1", Objective.MAKESPAN).timeline.lowered,
        ScenarioFactors(family_problem(Objective.MAKESPAN)),
        Objective.MAKESPAN,
    )
    (span,) = scenarios.spans
    ways = scenarios.start_us + scenarios.tails_us(span)
    assert np.allclose(ways.max(axis=0), span.length_us)


def ops(rank: int, text: str) -> tuple[Op, ...]:
    return tuple(Op(OpKind(token[0]), rank, int(token[1])) for token in text.split())


def test_of_two_longest_ways_one_is_made_shorter() -> None:
    # All ops take 10, but W on rank 1 takes 20. Both orders take 90; in the first one both ranks
    # end at 90, in the second one rank 0 ends at 70, and only rank 1 can make it later.
    # rank 0  F0 F1 .. B0 W0 .. .. B1 W1        rank 0  F0 F1 .. B0 W0 B1 W1
    # rank 1  .. F0 B0 W0 W0 F1 B1 W1 W1        rank 1  .. F0 B0 F1 B1 W0 W0 W1 W1
    costs = uniform_costs(2, forward_us=10, backward_input_us=10, backward_weight_us=10)
    first, last = costs.stages
    slow = last.replace(duration_us={**last.duration_us, W: 20, OpKind.BW: 30})
    problem = Problem.linear(costs.replace(stages=(first, slow)), 2)
    programs = (ops(0, "F0 F1 B0 W0 B1 W1"), ops(1, "F0 B0 W0 F1 B1 W1"))
    given = evaluate(problem, Schedule.linear("both", 2, programs), "both")
    assert given is not None
    loose = improve_robustness(problem, given)
    assert given.value_us == loose.value_us == 90
    assert [max(line.end_us[:6]) for line in (given.timeline, loose.timeline)] == [90, 70]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_published_schedules_lose_less_in_worlds_not_looked_at(
    name: str, objective: Objective
) -> None:
    problem, given = family_problem(objective), family(name, objective)
    loose = improve_robustness(problem, given)
    scenario_factors = ScenarioFactors(problem, seed=1, num_scenarios=101)
    before, after = (
        ScenarioTimes(c.timeline.lowered, scenario_factors, objective).value_us
        for c in (given, loose)
    )
    assert loose.value_us <= given.value_us
    assert max(loose.peak_bytes) <= max(given.peak_bytes)
    assert after <= before


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("seed", range(3))
def test_slack_costs_neither_time_nor_memory(name: str, seed: int, objective: Objective) -> None:
    problem = replace(random_problem(seed, name, 2, 5, boundary=True), objective=objective)
    given = evaluate(problem, serial_schedule(problem), "serial")
    assert given is not None
    loose = improve_robustness(problem, given)
    lowered, timeline = verify(loose.schedule, problem.costs, problem.caps_bytes)
    assert objective.value_us(timeline) == loose.value_us <= given.value_us
    assert max(loose.peak_bytes) <= max(given.peak_bytes)
    scenario_factors = ScenarioFactors(problem)
    scenarios = [
        ScenarioTimes(x, scenario_factors, objective) for x in (given.timeline.lowered, lowered)
    ]
    assert scenarios[1].value_us <= scenarios[0].value_us + 1e-3
    assert improve_robustness(problem, given).schedule == loose.schedule
