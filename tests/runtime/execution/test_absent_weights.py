"""W of products whose weights have gone on to another rank, of any layout and under autocast."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.families import generate
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here

WIDTH, MICRO_BATCHES = 4, 4

Product = Callable[[Tensor, Tensor], Tensor]


def narrow(product: Product) -> Product:
    def run(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return product(x, weight)

    return run


def right(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def left(x: Tensor, weight: Tensor) -> Tensor:
    return (weight @ x.mT).mT


def left_of_stack(x: Tensor, weight: Tensor) -> Tensor:
    return (weight @ x[None].mT).mT[0]


def of_stack(x: Tensor, weight: Tensor) -> Tensor:
    return torch.bmm(x[None], weight[None])[0]


PRODUCTS: dict[str, Product] = {
    each.__name__: each for each in (right, left, left_of_stack, of_stack)
}
PRODUCTS |= {f"narrow {name}": narrow(product) for name, product in PRODUCTS.items()}


class Stage(nn.Module):
    def __init__(self, product: str) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.empty(WIDTH, WIDTH)), nn.LayerNorm(WIDTH)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(PRODUCTS[self.product](x, self.weight).float())
        return y


def build(count: int, product: str) -> list[nn.Module]:
    stages: list[nn.Module] = [Stage(product) for _ in range(count)]
    draw_weights(stages, seed=3)
    return stages


def draw() -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(1)
    both = [torch.randn(3, WIDTH, generator=draw) for _ in range(2 * MICRO_BATCHES)]
    return both[:MICRO_BATCHES], both[MICRO_BATCHES:]


def passed(rank: int, size: int, product: str) -> dict[int, list[Any]]:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate("weipipe:wzb2", size, MICRO_BATCHES)
    stages = dict(enumerate(build(schedule.placement.num_stages, product)))
    loss = nn.functional.mse_loss
    pipeline = Pipeline(schedule, stages, group=group_here(), loss=loss, timeout_s=60)
    pipeline.step(Batch(*draw()))
    return {n: [p.grad for p in stage.parameters()] for n, stage in pipeline.updated.items()}


@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_are_one_process_s(product: str) -> None:
    stages = build(generate("weipipe:wzb2", 2, MICRO_BATCHES).placement.num_stages, product)
    for x, target in zip(*draw(), strict=True):
        for stage in stages:
            x = stage(x)
        (nn.functional.mse_loss(x, target) / MICRO_BATCHES).backward()
    for found in RankThreads().run(passed, 2, product):
        for number, gradients in found.items():
            wanted = [p.grad for p in stages[number].parameters()]
            torch.testing.assert_close(gradients, wanted)
