"""Gradients that the devices of a rank reduce: brute force, the MILP, and a closed form."""

import random
from dataclasses import replace

import pytest

from synth.costs.costs import uniform_costs
from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from synth.solver.problem import Problem
from synth.solver.solver import solve
from tests.sweep import sweep
from tests.synth.effort import counted
from tests.synth.solver.test_solve_exact import MILP, check_sound
from tests.synth.solver.test_solve_placements import brute_force, random_problem

SMALL = [("linear", 2, 2), ("v", 2, 1), ("looped:2", 2, 1), ("looped:2", 1, 1)]


def reducing(seed: int, name: str, num_ranks: int, m: int) -> Problem:
    """Stages whose reductions are from nothing to longer than all ops."""
    problem = random_problem(seed, name, num_ranks, m)
    rng = random.Random(seed)
    stages = (s.replace(reduce_us=rng.choice([0, 1, 5, 40])) for s in problem.costs.stages)
    return replace(problem, costs=problem.costs.replace(stages=tuple(stages)))


@pytest.mark.parametrize("seed", sweep(range(12), daily=2))
@pytest.mark.parametrize(("name", "num_ranks", "m"), SMALL)
def test_the_optimum_is_that_of_brute_force(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = reducing(seed, name, num_ranks, m)
    result = solve(problem, counted())
    check_sound(result)
    assert result.value_us == result.lower_bound_us == brute_force(problem)


@pytest.mark.parametrize("seed", sweep(range(12), daily=1))
@pytest.mark.parametrize(("name", "num_ranks", "m"), [("linear", 3, 3), ("v", 2, 2)])
def test_cpsat_and_milp_agree(name: str, num_ranks: int, m: int, seed: int) -> None:
    problem = reducing(seed + 50, name, num_ranks, m)
    result = solve(problem, counted())
    other = solve(problem, MILP)
    check_sound(result)
    assert result.value_us == other.value_us


@pytest.mark.parametrize(("reduce_us", "makespan_us"), [(0, 120), (20, 140), (45, 170), (5, 125)])
def test_cooldown_hides_all_but_what_a_rank_has_left(reduce_us: int, makespan_us: int) -> None:
    """1F1B on two ranks with two stages each, of F = 10 and BW = 20, one micro-batch.

    Rank 0 ends stage 2 at 80 and stage 0 at 120, so it reduces stage 2 from 80 on.
    """
    costs = uniform_costs(4, forward_us=10, backward_input_us=10, backward_weight_us=10)
    stages = tuple(stage.replace(reduce_us=reduce_us) for stage in costs.stages)
    where = placement("looped:2", 2)
    programs = tuple(
        tuple(Op(kind, stage, 0) for kind, stage in program)
        for program in (
            ((OpKind.F, 0), (OpKind.F, 2), (OpKind.BW, 2), (OpKind.BW, 0)),
            ((OpKind.F, 1), (OpKind.F, 3), (OpKind.BW, 3), (OpKind.BW, 1)),
        )
    )
    schedule = Schedule(where, 1, programs, "by hand")
    timeline = verify(schedule, costs.replace(stages=stages))[1]
    assert Objective.MAKESPAN.value_us(timeline) == makespan_us
