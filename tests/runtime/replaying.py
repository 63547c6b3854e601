"""A small model whose stages are replayed under any schedule, beside plain autograd."""

from functools import partial
from queue import SimpleQueue

import torch
from torch import Tensor, nn

from synth.schedule.model import Schedule
from tests.runtime.gradients import gradient_of
from tests.runtime.rank_threads import draw_weights, group_here

WIDTH, BATCH = 6, 3


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x_BD: Tensor, targets_B1: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.out(x_BD), targets_B1)


def build_stages(count: int) -> list[nn.Module]:
    layers = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))
        for _ in range(count - 1)
    ]
    stages = [*layers, Head()]
    draw_weights(stages, seed=2)
    return stages


def build_batch(num_micro_batches: int) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(4)
    inputs = torch.randn((num_micro_batches, BATCH, WIDTH), generator=draw)
    return list(inputs), list(torch.randn((num_micro_batches, BATCH, 1), generator=draw))


def plain_autograd(count: int, num_micro_batches: int) -> list[list[Tensor]]:
    """Each stage's gradients, of the mean loss, micro-batch after micro-batch."""
    stages = build_stages(count)
    for x, targets in zip(*build_batch(num_micro_batches), strict=True):
        for stage in stages[:-1]:
            x = stage(x)
        (stages[-1](x, targets) / num_micro_batches).backward()
    return [[gradient_of(p) for p in stage.parameters()] for stage in stages]


def replay(rank: int, size: int, schedules: list[Schedule]) -> list[tuple[set[int], set[int], int]]:
    """Run each schedule's part of a rank once, and compare its gradients with plain autograd's.

    Returns for each: the rank's stages, those whose gradients differ, and how many values were
    left behind.
    """
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    answers = []
    for schedule in schedules:
        stages = build_stages(schedule.placement.num_stages)
        mine = {stage for stage, _ in schedule.placement.held[rank]}
        pipeline = Pipeline(
            schedule, {stage: [stages[stage]] for stage in mine}, group=group_here()
        )
        pipeline.step(Batch(*build_batch(schedule.num_micro_batches)))
        wanted = plain_autograd(len(stages), schedule.num_micro_batches)
        wrong = {s for s in mine if not _same(schedule, stages[s], wanted[s])}
        answers.append((mine, wrong, pipeline.held_values))
    return answers


def _same(schedule: Schedule, stage: nn.Module, wanted: list[Tensor]) -> bool:
    """Check equality bit for bit, or to rounding if gradients of copies of a stage are summed."""
    found = [gradient_of(parameter) for parameter in stage.parameters()]
    if len(schedule.placement.ranks) == 1:
        return all(map(torch.equal, found, wanted))
    return all(map(partial(torch.allclose, rtol=1e-5, atol=1e-6), found, wanted))


class FailingLinear(nn.Linear):
    """A layer that fails once it has run a number of times."""

    def __init__(self, left: int) -> None:
        super().__init__(4, 4)
        self.most = left
        self.runs: SimpleQueue[None] = SimpleQueue()  # which nothing puts back after a trial, or R

    def forward(self, x: Tensor) -> Tensor:
        self.runs.put(None)
        if self.runs.qsize() > self.most:
            raise ValueError("the rank that fails")
        return super().forward(x)
