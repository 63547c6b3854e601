"""Published schedules on the candidate partitions: no plan is above any of them."""

import threading
from itertools import product
from typing import Any

import pytest

from benchmarks.realistic_profiles import PLACEMENTS, RealisticCase, realistic_case
from benchmarks.realistic_suite import best_published, in_processor_time, solved
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import family_of, generate, names_on
from synth.plan.choose import race
from synth.plan.choose.candidates import Candidate, Partitioning, SearchWatch
from synth.plan.choose.race import solve_best_of
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.placements import placement
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.result import Result
from tests.sweep import sweep

LIMIT_S = 10.0


def small(seed: int, name: str) -> RealisticCase:
    """A case of at most 12 micro-batches."""
    case = realistic_case(seed, name)
    return case._replace(num_micro_batches=min(12, case.num_micro_batches))


@pytest.mark.parametrize("name", ["linear", "v"])
@pytest.mark.parametrize("seed", sweep([8, 1, 3, 4, 5, 7], daily=2))
def test_a_schedule_that_is_of_use_is_made_whatever_is_known(name: str, seed: int) -> None:
    case = small(seed, name)
    where = placement(name, case.num_ranks)
    sizes = equal_cuts(StageCostTable(case.profile), where.num_stages)[0]
    costs = partition_costs(case.profile, sizes)

    def makespan_us(family: str, below_us: int | None) -> int | None:
        numbers = (family, case.num_ranks, case.num_micro_batches)
        try:
            made = generate(*numbers, costs=costs, caps_bytes=case.caps_bytes, below_us=below_us)
        except SynthError:
            return None
        return verify(made, costs)[1].makespan_us

    for family in (name for name in names_on(where) if family_of(name).timed):
        alone_us = makespan_us(family, None)
        if alone_us is not None:
            assert makespan_us(family, alone_us + 1) == alone_us, family
            just_us = makespan_us(family, alone_us)
            assert just_us is None or just_us >= alone_us, family


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that the first trial sets: published schedules are all that a race then has."""
    stop = threading.Event()

    def ended(profile: Any, problem: Problem, *others: Any) -> Result:
        stop.set()
        return Result.without_schedule(problem, StoppedBy.INTERRUPT, "stopped")

    monkeypatch.setattr(race, "solve_repartitioning", ended)
    return stop


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"), sweep([*product(("v", "linear"), [1]), *product(PLACEMENTS, range(2, 16))], 2)
)
def test_no_published_schedule_on_a_candidate_partition_is_better(
    name: str, seed: int, stop: threading.Event
) -> None:
    case = small(seed, name)
    best = best_published(case)
    with in_processor_time():
        value_us = solved(case, None, SolveOptions(LIMIT_S, workers=1), stop).value_us
    assert best is None or (value_us is not None and value_us <= best[0]), (value_us, best)


@pytest.mark.slow
def test_zb_v_on_equal_layers_is_known_in_six_seconds(stop: threading.Event) -> None:
    profile, where = Profile.load(find("zb-6.2b-p8-m24")), placement("v", 8)
    equal = (2,) * 16
    costs = partition_costs(profile, equal)
    problem = Problem(costs, where, 24, partition=equal)
    zb_v_us = verify(generate("zb-v", 8, 24, costs=costs), costs)[1].makespan_us
    with in_processor_time():
        options = SolveOptions(6.0, workers=1)
        candidates = [Candidate("v", problem)]
        found = solve_best_of(
            candidates, profile, Partitioning.EVEN, options, watch=SearchWatch(stop=stop)
        )
    assert found.result.value_us is not None and found.result.value_us <= zb_v_us
