"""The exact model of all-gathers: against all schedules, closed forms, and lowering."""

import random
from itertools import permutations

import pytest

from synth.op_kinds import OpKind
from synth.schedule.files.certificate import ProverName
from synth.schedule.model import Buffering
from synth.schedule.ops import Op
from synth.schedule.verify import verify
from synth.schedule.weight_flow import Sharded
from synth.search.outcome import StoppedBy
from synth.solver.options import Part, SolveOptions
from synth.solver.weight_passing.bounds import (
    level_bound_us,
    levels_that_may_fit,
    prove_weight_passing,
)
from synth.solver.weight_passing.exact_gather_model import num_slots
from synth.solver.weight_passing.gather_proof import prove_gathers, solve_level
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.search import WeightPassingSearch
from synth.solver.weight_passing.small_problems import is_small
from tests.sweep import sweep
from tests.synth.every_weight_schedule import gather_programs, on_all_ranks, value_us
from tests.synth.solver.test_weight_search import equal_costs, unequal_costs, weight_passing_problem

GATHER = WeightMovement.GATHER
ONE = SolveOptions(workers=1, deterministic=True, time_limit_s=20.0)
LONGEST_US = 10_000


def small(seed: int, headroom: int | None = None, rounds: int = 1) -> WeightPassingProblem:
    return weight_passing_problem(
        GATHER, unequal_costs(2, random.Random(seed)), 2, rounds, headroom
    )


def least_of_all_us(passing: WeightPassingProblem) -> int | None:
    """The least makespan of all programs with any order of STEPs and any window of gradients."""
    free = small_without_limit(passing)
    best_us: int | None = None
    for program in gather_programs(passing):
        for stages in permutations(range(len(passing.stages))):
            whole = [*program, *(Op(OpKind.STEP, stage) for stage in stages)]
            on_all = on_all_ranks(passing, whole)
            least_us = value_us(free, on_all, Buffering(1, 99))
            if least_us is None or (best_us is not None and least_us >= best_us):
                continue
            for behind in range(len(whole)):
                us = value_us(passing, on_all, Buffering(1, behind))
                if us is not None and (best_us is None or us < best_us):
                    best_us = us
    return best_us


def small_without_limit(passing: WeightPassingProblem) -> WeightPassingProblem:
    return weight_passing_problem(GATHER, passing.problem.costs, passing.num_ranks, passing.rounds)


@pytest.mark.parametrize(("seed", "headroom"), sweep([(0, 260), (5, 330)], daily=1))
def test_the_optimum_is_that_of_all_schedules(seed: int, headroom: int) -> None:
    passing = small(seed, headroom)
    found = solve_level(passing, Sharded.WEIGHTS, LONGEST_US, ONE, 20.0)
    best_us = least_of_all_us(passing)
    assert best_us is not None
    assert found.value_us == found.bound_us == best_us


@pytest.mark.parametrize("seed", sweep(range(8), daily=4))
def test_no_closed_form_exceeds_the_optimum_and_lowering_agrees_with_the_model(seed: int) -> None:
    headroom = random.Random(seed).choice([None, 200, 260, 320, 400])
    passing = small(seed, headroom)
    for sharded in levels_that_may_fit(passing):
        found = solve_level(passing, sharded, LONGEST_US, ONE, 20.0)
        if found.schedule is None:
            assert found.bound_us == LONGEST_US + 1  # proven: none keeps the limit
            continue
        problem = passing.problem
        timeline = verify(found.schedule, problem.costs, problem.caps_bytes)[1]
        assert timeline.makespan_us == timeline.period_us == found.value_us
        assert level_bound_us(passing, sharded) <= found.bound_us == found.value_us


def test_a_gap_that_closed_forms_leave_is_closed_by_the_exact_model() -> None:
    passing = small(0)
    proof = prove_gathers(passing, None, ONE, 20.0)
    assert proof.schedule is not None and proof.is_complete
    least_us = min(level_bound_us(passing, sharded) for sharded in passing.levels)
    assert least_us < proof.bound_us
    options = SolveOptions(workers=1, deterministic=True, time_limit_s=5.0)
    found = WeightPassingSearch(passing, options).run()
    assert found.value_us == found.lower_bound_us == proof.bound_us
    assert found.stopped_by == StoppedBy.OPTIMAL
    assert found.certificate is not None and found.certificate.prover == ProverName.EXACT


def test_a_known_makespan_that_is_optimal_is_proven_without_a_schedule() -> None:
    passing = small(0)
    best_us = prove_gathers(passing, None, ONE, 20.0).bound_us
    again = prove_gathers(passing, best_us, ONE, 20.0)
    assert again.schedule is None and again.is_complete and again.bound_us == best_us


def test_large_problems_and_searches_without_it_have_no_exact_model() -> None:
    large = weight_passing_problem(GATHER, equal_costs(8), 8, 4)
    assert num_slots(large) == 8 * (3 * 4 + 1) and not is_small(large)
    assert not is_small(weight_passing_problem(WeightMovement.RING, equal_costs(2), 2, 2))
    options = SolveOptions(
        workers=1, deterministic=True, time_limit_s=0.02, without=frozenset({Part.EXACT})
    )
    found = WeightPassingSearch(small(0), options).run()
    assert found.certificate is None or found.certificate.prover == ProverName.CLOSED_FORMS


@pytest.mark.parametrize(("seed", "headroom"), [(3, 230), (5, 340)])
def test_with_two_micro_batches_a_rank_no_schedule_found_is_below_the_models_bound(
    seed: int, headroom: int
) -> None:
    passing = small(seed, headroom, rounds=2)
    options = SolveOptions(
        workers=1, deterministic=True, time_limit_s=0.1, without=frozenset({Part.EXACT})
    )
    found = WeightPassingSearch(passing, options).run()
    assert found.value_us is not None
    # One more, so that a model that excludes the schedule would find no bound as small.
    proof = prove_gathers(passing, found.value_us + 1, ONE, 2.0)
    assert prove_weight_passing(passing).bound_us <= proof.bound_us <= found.value_us
