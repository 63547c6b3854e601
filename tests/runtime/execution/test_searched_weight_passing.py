"""Schedules that the search finds for weight passing train as published ones do."""

from typing import Any

import pytest

from synth.costs.partition_costs import partition_costs
from synth.profile import Profile
from synth.profile.links import Link, Links
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import everywhere
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.search import WeightPassingSearch
from tests.runtime.training.test_train_weight_passing import (
    TINY,
    UNCOUNTED_BYTES,
    options,
    plan_of,
    profile,
    run,
)

__all__ = ["TINY", "options", "profile"]  # fixtures


@pytest.mark.parametrize("movement", WeightMovement)
def test_a_searched_plan_learns_what_1f1b_does_within_its_peaks(
    pool: Any, profile: Profile, options: TrainOptions, movement: WeightMovement
) -> None:
    expected = run(pool, plan_of(profile, "1f1b"), options)[0].losses
    sizes = plan_of(profile, "1f1b").partition
    # With slow links micro-batches share visits, which no published schedule has.
    slow = profile.replace(links=Links(default=Link(latency_us=5000)))
    costs = partition_costs(slow, sizes)
    problem = Problem(costs, everywhere(2, 2), 4)
    search = WeightPassingSearch(
        WeightPassingProblem(problem, movement), SolveOptions(time_limit_s=60)
    )
    schedule = search.run(2).schedule
    assert schedule is not None and schedule.name == f"synth {movement}"
    plan = Plan.of(slow, sizes, schedule)
    for rank, result in enumerate(run(pool, plan, options)):
        assert result.losses == pytest.approx(expected, rel=1e-5)
        assert result.peak_bytes <= plan.claim.peak_bytes[rank] + UNCOUNTED_BYTES
