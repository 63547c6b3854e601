"""The enumeration of all schedules on a ring, against the one of the tests."""

import random
from itertools import product

import pytest

from synth.schedule.files.certificate import ProverName
from synth.schedule.model import Buffering
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.programs import of_rank
from synth.solver.weight_passing.ring_enumeration import Enumeration, enumerate_ring
from synth.solver.weight_passing.ring_programs import RankPrograms
from synth.solver.weight_passing.search import WeightPassingSearch
from tests.sweep import sweep
from tests.synth.every_weight_schedule import ring_programs, value_us
from tests.synth.solver.test_weight_search import unequal_costs, weight_passing_problem

RING = WeightMovement.RING
HOURS_S = 1e5


def tight(seed: int) -> WeightPassingProblem:
    """Two stages and two micro-batches on two ranks, under a limit that is not always possible."""
    rng = random.Random(seed)
    return weight_passing_problem(RING, unequal_costs(2, rng), 2, 1, rng.randint(120, 330))


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a_rank_has_all_programs_once(num_stages: int) -> None:
    passing = weight_passing_problem(RING, unequal_costs(num_stages, random.Random(1)), 2, 1)
    for rank in range(2):
        found = [tuple(of_rank(passing, rank, ops)) for ops in RankPrograms(passing, rank).all()]
        assert len(set(found)) == len(found)
        known = {
            tuple(op._replace(replica=rank) for op in program)
            for program in ring_programs(passing, rank)
        }
        assert known <= set(found)  # known puts visits at one place in one order only
        if num_stages == 2:
            assert known == set(found)


@pytest.mark.parametrize("seed", sweep([106, 124, 111, 116], daily=2))
def test_no_buffering_is_faster_than_those_at_the_border(seed: int) -> None:
    passing, rng = tight(seed), random.Random(seed)
    every = [ring_programs(passing, rank) for rank in range(2)]
    for pair in rng.sample([*product(*every)], 25):
        search = Enumeration(passing, None)
        search.take([tuple(program) for program in pair])
        longest = max(map(len, pair))
        grid = product(range(longest + 1), repeat=2)
        values = [value_us(passing, list(pair), Buffering(*one)) for one in grid]
        assert search.best_us == min((us for us in values if us is not None), default=None)


@pytest.mark.parametrize("seed", sweep([100, 103, 101, 102, 104], daily=2))
def test_the_search_has_the_optimum_of_a_tiny_ring_and_proves_it(seed: int) -> None:
    passing = tight(seed)
    exact = enumerate_ring(passing, None, SolveOptions(), HOURS_S)
    found = WeightPassingSearch(passing, SolveOptions(time_limit_s=HOURS_S, gap=0.0)).run()
    if exact.schedule is None:
        assert exact.bound_us == 0 and found.stopped_by == StoppedBy.INFEASIBLE
        return
    assert found.value_us == found.lower_bound_us == exact.bound_us
    assert found.stopped_by == StoppedBy.OPTIMAL
    assert exact.proven(passing).certificate.prover == ProverName.EXACT
    above = enumerate_ring(passing, exact.bound_us, SolveOptions(), HOURS_S)
    assert above.is_complete and above.schedule is None and above.bound_us == exact.bound_us


def test_an_enumeration_that_is_stopped_proves_nothing() -> None:
    found = enumerate_ring(tight(100), 5000, SolveOptions(), HOURS_S, lambda: True)
    assert (found.bound_us, found.schedule, found.is_complete) == (0, None, False)
