"""A gradient that a module injects counts as a loss of its micro-batch, by `gradient_factor`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from synth.runtime.batch import Batch
from synth.runtime.execution.transport.in_process.ranks import InProcessGroup, run_ranks
from synth.runtime.grad_scaler import PipelineGradScaler
from synth.runtime.micro_batch import current_micro_batch
from synth.runtime.pipeline import Pipeline

M, SCALE = 4, 8.0


class AddLoss(torch.autograd.Function):
    """Passes its input on; in the backward, the balance loss gets the micro-batch's factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, balance: Tensor) -> Tensor:
        ctx.factor = current_micro_batch().gradient_factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        now = current_micro_batch().gradient_factor
        assert float(now) == float(ctx.factor)
        return gradient, torch.ones(()) * ctx.factor


class Expert(nn.Module):
    def __init__(self, *, injects: bool) -> None:
        super().__init__()
        self.inner, self.router = nn.Linear(8, 8), nn.Linear(8, 4, bias=False)
        self.injects = injects

    def balance(self, x: Tensor) -> Tensor:
        return self.router(x).softmax(-1).square().mean()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return AddLoss.apply(y, self.balance(x)) if self.injects else y


def build(*, injects: bool) -> list[Expert]:
    torch.manual_seed(3)
    return [Expert(injects=injects) for _ in range(2)]


def draw() -> Batch:
    generator = torch.Generator().manual_seed(1)
    xs, ts = (torch.randn(M, 3, 8, generator=generator) for _ in range(2))
    return Batch(list(xs), list(ts))


def of_one_process(weights: list[float]) -> list[list[Tensor]]:
    """The gradients of the weighted sum of losses, with the balance losses among them."""
    stages, batch = build(injects=False), draw()
    assert batch.inputs is not None and batch.targets is not None
    for x, target, weight in zip(batch.inputs, batch.targets, weights, strict=True):
        y = stages[0](x)
        loss = nn.functional.mse_loss(stages[1](y), target)
        loss = loss + stages[0].balance(x) + stages[1].balance(y)
        (weight * loss).backward()
    return [[p.grad for p in stage.parameters() if p.grad is not None] for stage in stages]


def in_a_pipeline(family: str, scaled: bool = False, **options: Any) -> list[list[Tensor]]:
    stages = build(injects=True)

    def train(group: InProcessGroup) -> None:
        pipeline = Pipeline(
            generate(family, 2, M),
            {group.rank: stages[group.rank]},
            group=group,
            loss=nn.functional.mse_loss,
            timeout_s=30,
        )
        scaler = PipelineGradScaler(pipeline, init_scale=SCALE) if scaled else None
        pipeline.step(draw(), scaler=scaler, **options)

    run_ranks(2, train)
    return [[p.grad for p in stage.parameters() if p.grad is not None] for stage in stages]


@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "gpipe"])
def test_an_injected_gradient_is_that_of_a_loss_of_the_micro_batch(family: str) -> None:
    torch.testing.assert_close(in_a_pipeline(family), of_one_process([1 / M] * M))


def test_it_follows_the_weights_of_a_step() -> None:
    found = in_a_pipeline("zb-h1", weight=0.5, update=False)
    torch.testing.assert_close(found, of_one_process([0.5 / M] * M))
    weights = [1.0, 2.0, 0.0, 4.0]  # such as tokens of a loss that is a sum
    torch.testing.assert_close(in_a_pipeline("1f1b", weights=weights), of_one_process(weights))
    found = in_a_pipeline("1f1b", weights=torch.tensor(weights))
    torch.testing.assert_close(found, of_one_process(weights))


def test_it_follows_the_scale_of_a_grad_scaler() -> None:
    found = in_a_pipeline("zb-h1", scaled=True)
    torch.testing.assert_close(found, of_one_process([SCALE / M] * M))


def test_a_module_reads_it_outside_of_a_pipeline_too() -> None:
    alone = current_micro_batch()
    assert (alone.index, alone.num_micro_batches, alone.gradient_factor) == (0, 1, 1.0)
