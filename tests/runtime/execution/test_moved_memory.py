"""Moved activations free their memory: peaks of runs whose schedules move saved activations."""

import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.costs.partition_costs import partition_costs
from synth.families import family_placement, generate
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.profile.layer_profile import Timing
from synth.profile.links import Link, Links
from synth.profile.workload import Workload
from synth.runtime.profiling.profile_model import profile_model
from synth.runtime.rank_result import RankResult
from synth.schedule.files.plan_file import Plan
from synth.schedule.placements import placement
from synth.schedule.verify import ScheduleError, verify
from tests.runtime.train_plans import train_plans
from tests.sweep import sweep
from tests.synth.plain import random_schedule

CPU = torch.device("cpu")
TINY = {"vocabulary_size": 256, "width": 32, "num_blocks": 6, "num_heads": 2, "context_length": 16}
LINKS = Links(host=Link(latency_us=10.0, bandwidth_bytes_per_s=5e9))


def profiled(**workload: Any) -> Profile:
    """Bytes as measured; times as given, since what families move depends on them."""
    told = {"model": "gpt", "arguments": TINY, "micro_batch_size": 2, "sequence_length": 16}
    made = Workload.model_validate({**told, **workload})
    profile = profile_model(made, CPU, warmup=0, iterations=1, links=LINKS)
    layers = {
        name: layer.replace(time_us=dict.fromkeys(layer.time_us, Timing.exactly(1000)))
        for name, layer in profile.layer_profiles.items()
    }
    return profile.replace(layer_profiles=layers)


def evenly(profile: Profile, num_stages: int) -> list[int]:
    """A partition that does not depend on measured times, so that neither do peaks."""
    return [len(profile.layers) // num_stages] * num_stages


def plan_of(profile: Profile, name: str, num_ranks: int, num_micro_batches: int) -> Plan:
    where = family_placement(name, num_ranks)
    sizes = evenly(profile, where.num_stages)
    costs = partition_costs(profile, sizes)
    return Plan.of(profile, sizes, generate(name, num_ranks, num_micro_batches, costs=costs))


def assert_as_planned(plan: Plan, results: list[RankResult]) -> None:
    # With autocast, layers profiled apart are but a bound, also where nothing moves.
    near = 0.95 if plan.workload.autocast is None else 0.8
    for result, predicted in zip(results, plan.claim.peak_bytes, strict=True):
        assert near * predicted < result.peak_bytes <= predicted, plan.name


def has_moves(plan: Plan) -> bool:
    return any(op.kind == OpKind.OFFLOAD for ops in plan.schedule().programs for op in ops)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_families_that_move_hold_what_was_planned_and_learn_what_1f1b_learns(
    pool: Any, text: Path, num_ranks: int
) -> None:
    profile, m = profiled(), 2 * num_ranks
    names = ["1f1b", "bpipe", "pipeoffload:1,full", "pipeoffload:2", "pipeoffload:2,full"]
    plans = [plan_of(profile, name, num_ranks, m) for name in names]
    by_rank = pool.run(train_plans, num_ranks, [plan.to_json() for plan in plans], text)
    by_plan = [list(results) for results in zip(*by_rank, strict=True)]
    for plan, results in zip(plans, by_plan, strict=True):
        assert_as_planned(plan, results)
        assert results[0].losses == by_plan[0][0].losses
    moving = {name for name, plan in zip(names, plans, strict=True) if has_moves(plan)}
    on_two = {"pipeoffload:2", "pipeoffload:2,full"}
    assert moving == (set(names[1:]) if num_ranks > 2 else on_two)


@pytest.mark.parametrize(
    "workload",
    [{}, {"recomputed_layers": ("block.1", "block.4")}, {"autocast": "bfloat16"}],
    ids=["plain", "two blocks recomputed", "autocast"],
)
@pytest.mark.parametrize("first_seed", sweep([1, 1001], daily=1))
def test_random_orders_with_rebuilds_and_moves_hold_what_was_planned(
    pool: Any, text: Path, workload: dict[str, Any], first_seed: int
) -> None:
    profile, where = profiled(**workload), placement("looped:2", 2)
    sizes = evenly(profile, where.num_stages)
    costs, seeds = partition_costs(profile, sizes), count(first_seed)
    plans: list[Plan] = []
    while len(plans) < 6:
        schedule = random_schedule(random.Random(next(seeds)), where=where)
        try:
            verify(schedule, costs)
        except ScheduleError:
            continue
        plan = Plan.of(profile, sizes, schedule)
        if has_moves(plan):
            plans.append(plan)
    by_rank = pool.run(train_plans, 2, [plan.to_json() for plan in plans], text)
    for plan, *results in zip(plans, *by_rank, strict=True):
        assert_as_planned(plan, results)
