"""Autocast in the forward of modules, and around steps in which weights change."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import synth
from synth.families import generate
from synth.profile.optimizer import OptimizerKind, OptimizerSpec
from synth.runtime.batch import Batch
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.optimize import StepSettings, build_flush_free_step
from synth.runtime.pipeline import Pipeline

WIDTH, MICRO_BATCHES = 6, 4
FAMILIES = ["1f1b", "zb-h1", "zb-v", "gpipe:recompute"]


class In(nn.Module):
    """Computes in bfloat16, or in float32 within a caller's autocast."""

    def __init__(self, *, is_low: bool) -> None:
        super().__init__()
        self.linear, self.is_low = nn.Linear(WIDTH, WIDTH), is_low

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_low):
            return torch.tanh(self.linear(x if self.is_low else x.float()))


def data() -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(1)
    xs, ys = ([torch.randn(3, WIDTH, generator=draw) for _ in range(4)] for _ in range(2))
    return xs, ys


def squared(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.float(), target)


def gradients(layers: list[nn.Module]) -> list[Tensor | None]:
    return [p.grad for layer in layers for p in layer.parameters()]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_low", [True, False], ids=["on within", "off within"])
def test_gradients_are_those_of_backwards_outside_of_autocast(is_low: bool, family: str) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [In(is_low=is_low) for _ in range(4)]
    mine, schedule = copy.deepcopy(layers), generate(family, 2, MICRO_BATCHES)
    for x, y in zip(*data(), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=not is_low):
            loss = squared(nn.Sequential(*layers)(x), y) / MICRO_BATCHES
        loss.backward()
    per_stage = len(mine) // schedule.placement.num_stages

    def train(group: Any) -> None:
        stages = {
            stage: mine[per_stage * stage : per_stage * (stage + 1)]
            for stage, rank in enumerate(schedule.placement.ranks[0])
            if rank == group.rank
        }
        pipeline = Pipeline(schedule, stages, loss=squared, group=group, timeout_s=30)
        with torch.autocast("cpu", torch.bfloat16, enabled=not is_low):
            pipeline.step(Batch(*data()))

    run_ranks(2, train)
    for own, true in zip(gradients(mine), gradients(layers), strict=True):
        assert own is not None and true is not None and torch.equal(own, true)


class Whole(nn.Module):
    """Turns autocast on around its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(3))

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
        return squared(self.head(x.float()), targets)


def test_a_stage_that_begins_within_autocast_of_the_whole_model_is_given_its_dtype() -> None:
    torch.manual_seed(0)
    x, y = (torch.cat(both) for both in data())
    pieces = synth.cut_model(Whole(), x[:3], y[:3])
    losses: list[Tensor | None] = []

    def train(group: Any) -> None:
        own = pieces[1:] if group.rank else pieces[:1]
        pipeline = Pipeline(generate("1f1b", 2, MICRO_BATCHES), own, group=group, timeout_s=30)
        losses.append(pipeline.step(pipeline.split(x, targets=y)))

    run_ranks(2, train)
    assert sum(loss is not None for loss in losses) == 1


class OfCasts(nn.Module):
    """Computes with parameters that autocast casts, and keeps the casts of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(0.1 * torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("bi,ij->bj", x.float(), self.weight)
        return torch.tanh(self.linear(x.float()).float()) + y.float()


def losses_under_autocast(family: str, *, keeps_casts: bool) -> dict[int, list[float]]:
    """Train some steps, and return the losses by rank."""
    schedule = generate(family, 2, MICRO_BATCHES)
    torch.manual_seed(0)
    stages = [OfCasts() for _ in range(schedule.placement.num_stages)]
    found: dict[int, list[float]] = {0: [], 1: []}

    def train(group: Any) -> None:
        held = schedule.placement.held[group.rank]
        mine = {number: copy.deepcopy(stages[number]) for number, _ in held}
        pipeline = Pipeline(schedule, mine, loss=squared, group=group, timeout_s=30)
        if schedule.versions is not None:
            spec, settings = OptimizerSpec(kind=OptimizerKind.SGD), StepSettings(0.1)
            device = torch.device("cpu")
            pipeline.stepper = build_flush_free_step(
                mine, spec, settings, delays=pipeline.delays, device=device
            )
        updated = [p for module in pipeline.updated.values() for p in module.parameters()]
        optimizer = torch.optim.SGD(updated, 0.1)
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=keeps_casts):
                loss = pipeline.step(Batch(*data()))
            if loss is not None:
                found[group.rank].append(float(loss))
            if schedule.versions is None:
                optimizer.step()
                optimizer.zero_grad()

    run_ranks(2, train)
    return found


@pytest.mark.parametrize(
    "family",
    ["weipipe", "zero:1", "zero:3", "mobius:2", "roundpipe", "pipedream", "delayed-update"],
)
def test_autocast_keeps_no_casts_of_weights_that_have_moved_or_changed(family: str) -> None:
    kept = losses_under_autocast(family, keeps_casts=True)
    assert kept == losses_under_autocast(family, keeps_casts=False)
    assert any(kept.values())
