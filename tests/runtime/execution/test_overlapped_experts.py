"""Mixtures of experts under schedules whose F and BW run at once: gradients of one process."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.layer_times import LayerTimes
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import draw_weights
from tests.runtime.split.test_split_experts import WIDTH, ByIndex

RANKS, STAGES, MICRO_BATCHES, ROWS = 2, 4, 6, 5


class Last(ByIndex):
    """Experts, then the loss."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return nn.functional.mse_loss(super().forward(x), y)


def build_stages() -> list[nn.Module]:
    stages: list[nn.Module] = [*(ByIndex() for _ in range(STAGES - 1)), Last()]
    draw_weights(stages, seed=11)
    return stages


def draw() -> tuple[list[Tensor], list[Tensor]]:
    source = torch.Generator().manual_seed(3)
    x, y = torch.randn((2, MICRO_BATCHES, ROWS, WIDTH), generator=source)
    return list(x), list(y)


def gradients_of_one_process() -> list[list[Tensor]]:
    stages = build_stages()
    for x, y in zip(*draw(), strict=True):
        for stage in stages[:-1]:
            x = stage(x)
        (stages[-1](x, y) / MICRO_BATCHES).backward()
    return [[gradient_of(p) for p in stage.parameters()] for stage in stages]


def plan_of(name: str) -> Plan:
    layers = [
        LayerTimes(name="experts", count=STAGES, forward_us=500, backward_us=900, pair_us=1000)
    ]
    profile = Profile.from_times("experts", layers)
    costs = Plan.of(profile, (1,) * STAGES, generate("interleaved:2", RANKS, MICRO_BATCHES)).costs
    schedule = generate(name, RANKS, MICRO_BATCHES, costs=costs)
    return Plan.of(profile, (1,) * STAGES, schedule)


def train(rank: int, size: int, text: str) -> dict[int, list[Tensor]]:
    """Run the plan of a file once; the gradients of the rank's stages."""
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule, stages = Plan.from_json(text).schedule(), build_stages()
    held = [stage for stage, _ in schedule.placement.held[rank]]
    pipeline = Pipeline(schedule, {stage: [stages[stage]] for stage in held})
    pipeline.step(Batch(*draw()))
    return {stage: [gradient_of(p) for p in stages[stage].parameters()] for stage in held}


@pytest.mark.parametrize("name", ["dualpipe-v:overlap", "interleaved:2,overlap"])
def test_a_plan_with_pairs_trains_experts_as_one_process_does(pool: Any, name: str) -> None:
    plan = plan_of(name)
    assert any("&" in line for line in plan.programs)
    assert Plan.from_json(plan.to_json()) == plan
    by_rank = pool.run(train, RANKS, plan.to_json())
    found = {stage: gradients for each in by_rank for stage, gradients in each.items()}
    for stage, wanted in enumerate(gradients_of_one_process()):
        assert all(map(torch.equal, found[stage], wanted)), stage
