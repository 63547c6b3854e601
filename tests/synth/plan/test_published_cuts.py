"""Published schedules on the candidate partitions: no plan is above any of them."""

import threading
from itertools import product
from typing import Any

import pytest

from benchmarks.realistic_profiles import PLACEMENTS, RealisticCase, realistic_case
from benchmarks.realistic_suite import best_published, in_processor_time, solved
from synth.costs.partition_costs import partition_costs
from synth.errors import SynthError
from synth.families import generate, names_on, reads_times
from synth.plan.choose import race_run
from synth.plan.partition.candidates import equal_cuts
from synth.plan.partition.stage_cost_table import StageCostTable
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

    for family in filter(reads_times, names_on(where)):
        alone_us = makespan_us(family, None)
        if alone_us is not None:
            assert makespan_us(family, alone_us + 1) == alone_us, family
            just_us = makespan_us(family, alone_us)
            assert just_us is None or just_us >= alone_us, family


def judged_us(case: RealisticCase, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """The value with which the first trial begins, after published schedules alone."""
    stop = threading.Event()

    def ended(profile: Any, problem: Problem, *others: Any) -> Result:
        stop.set()
        return Result.without_schedule(problem, StoppedBy.INTERRUPT, "stopped")

    monkeypatch.setattr(race_run, "solve_repartitioning", ended)
    with in_processor_time():
        return solved(case, None, SolveOptions(LIMIT_S, workers=1), stop).value_us


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed"), sweep([*product(("v", "linear"), [1]), *product(PLACEMENTS, range(2, 16))], 2)
)
def test_no_published_schedule_on_a_candidate_partition_is_better(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = small(seed, name)
    best = best_published(case)
    value_us = judged_us(case, monkeypatch)
    assert best is None or (value_us is not None and value_us <= best[0]), (value_us, best)
