"""Data-parallel pipelines that share optimizer state: exact shares, and the answer for all."""

from dataclasses import replace

import pytest

import synth
from synth.costs.partition_costs import partition_costs
from synth.costs.recomputation import Recomputation
from synth.families import generate
from synth.plan.weight_passing.data_parallel_plan import (
    SharesExceedLimit,
    costs_of_one,
    of_all,
    problem_of_all,
    sharing_optimizer,
)
from synth.profile import Profile
from synth.profile.layer_times import LayerTimes
from synth.profile.links import Link, Links
from synth.schedule.model import Placement
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines
from synth.schedule.verify import verify
from synth.search.outcome import StoppedBy
from synth.solver.problem import Problem
from synth.solver.result import Result

SIZES = (4, 4)
# Of 17 bytes two pipelines keep 9 at most each; of four layers' 68 bytes 34, not 36.
ODD_BYTES = 17


def profile_of(latency_us: int = 1) -> Profile:
    layers = [
        LayerTimes(
            name=f"l{index}",
            forward_us=100,
            backward_input_us=100,
            backward_weight_us=100,
            step_us=10,
            parameter_bytes=8,
            gradient_bytes=8,
            optimizer_bytes=ODD_BYTES,
            output_bytes=2 if index < 7 else 0,
            saved_bytes=1,
        )
        for index in range(8)
    ]
    links = Links(default=Link(latency_us=latency_us, bandwidth_bytes_per_s=1e12))
    return Profile.from_times("odd", layers, links=links)


def peak_of_1f1b(profile: Profile) -> int:
    """The peak of two pipelines of 1F1B made by hand, with one micro-batch each."""
    schedule = sharded_pipelines(generate("1f1b", 2, 1), 2)
    return max(peak_bytes(verify(schedule, partition_costs(profile, SIZES))[0]))


@pytest.mark.parametrize("partition", ["4,4", "even"])
def test_a_limit_that_a_schedule_made_by_hand_keeps_is_not_infeasible(partition: str) -> None:
    profile = profile_of()
    cap = peak_of_1f1b(profile)
    plan = synth.solve(
        profile,
        ranks=2,
        micro_batches=1,
        placement="linear",
        partition=partition,
        recompute="none",
        data_parallel=2,
        time_limit=30,
        workers=1,
        mem_limit=f"{cap}B",
    )
    assert plan.caps_bytes == (cap,) * 4
    assert max(plan.claim.peak_bytes) <= cap


def test_shares_of_stages_are_exact_and_those_of_layers_no_larger() -> None:
    profile = profile_of()
    for num_pipelines in (2, 3, 5):
        exact = costs_of_one(profile, SIZES, num_pipelines, Placement.linear(len(SIZES)))
        below = partition_costs(sharing_optimizer(profile, num_pipelines), SIZES)
        for stage, bound in zip(exact.stages, below.stages, strict=True):
            assert stage.static_bytes == 64 + -(-4 * ODD_BYTES // num_pipelines)
            assert bound.static_bytes == 64 + 4 * (ODD_BYTES // num_pipelines)
            assert all(bound.duration_us[kind] <= us for kind, us in stage.duration_us.items())


def found_by_hand(profile: Profile, cap: int) -> tuple[Result, Problem]:
    """1F1B as the result of a search on shares of layers, and the problem of both pipelines."""
    costs = partition_costs(sharing_optimizer(profile, 2), SIZES)
    problem = Problem(costs, Placement.linear(2), 1, (cap, cap), partition=SIZES)
    lowered, timeline = verify(generate("1f1b", 2, 1), costs, problem.caps_bytes)
    value_us = problem.objective.value_us(timeline)
    found = Result(
        problem=problem,
        schedule=lowered.schedule,
        timeline=timeline,
        value_us=value_us,
        lower_bound_us=value_us,
        peak_bytes=peak_bytes(lowered),
        found_by="1f1b",
        stopped_by=StoppedBy.OPTIMAL,
        baselines=(),
        wall_s=0.0,
    )
    return found, problem_of_all(problem, profile, 2)


def test_a_schedule_that_exact_shares_have_no_room_for_is_refused() -> None:
    profile = profile_of()
    cap = peak_of_1f1b(profile)
    of_all(*found_by_hand(profile, cap), 2, 0.0)
    with pytest.raises(SharesExceedLimit, match=r"needs 1 B .* give --partition 4,4"):
        of_all(*found_by_hand(profile, cap - 1), 2, 0.0)
    found, problem = found_by_hand(profile, cap - 1)
    recomputing = replace(problem, recomputed_layers=Recomputation((2, 3)))
    with pytest.raises(SharesExceedLimit, match=r"give --partition 4,4 --recompute layers:2-3, "):
        of_all(found, recomputing, 2, 0.0)


def test_a_search_is_exhausted_only_if_collectives_leave_more_than_the_gap_asked_for() -> None:
    profile = profile_of(latency_us=100)
    found, problem = found_by_hand(profile, 1000)
    whole = of_all(found, problem, 2, 0.0)
    assert whole.gap is not None and 0 < whole.gap < 0.5
    assert whole.stopped_by == StoppedBy.NOTHING_BETTER
    assert of_all(found, problem, 2, 0.5).stopped_by == StoppedBy.GAP
    timed = replace(found, stopped_by=StoppedBy.TIME_LIMIT)
    assert of_all(timed, problem, 2, 0.5).stopped_by == StoppedBy.TIME_LIMIT
