"""Dropout in ranks that are groups of processes: whole activations, and divided ones."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.runtime.gloo_pool import GlooPool

WIDTH = 8


class Block(nn.Module):
    """Two matrices with dropout between them, and dropout of the sum that all processes have."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)
        self.inner, self.outer = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outer(self.down(self.inner(self.up(x))))
        return y


Found = tuple[list[Tensor], list[Tensor], list[Tensor]]


def call(rank: int, size: int, is_divided: bool, policy: str | None) -> Found:
    """The inner masks of two F, the outputs, and the gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    from synth.runtime.models.layered_stage import LayerCall
    from synth.runtime.models.tensor_parallel import DividedDraws

    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("draws",))
    torch.manual_seed(1)
    block = Block()
    styles: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(block, mesh, styles | ({"inner": DividedDraws()} if is_divided else {}))
    masks: list[Tensor] = []
    block.inner.register_forward_hook(lambda *given: masks.append(given[-1].detach() != 0))
    layer = LayerCall(0, block, policy=policy)
    x = torch.ones(3, WIDTH)
    outputs = []
    for seed in (7, 8):
        outputs.append(layer((x,), seed))
        outputs[-1].sum().backward()
    gradients = [p.grad for p in block.parameters()]
    return (
        masks,
        [y.detach() for y in outputs],
        [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients if g is not None],
    )


def same(first: Tensor, second: Tensor) -> float:
    return float((first == second).float().mean())


def test_divided_activations_have_masks_of_their_own_and_whole_ones_the_same(
    pool: GlooPool,
) -> None:
    (masks, outputs, _), (other_masks, other_outputs, _) = pool.run(call, 2, True, None)
    assert [same(a, b) for a, b in zip(outputs, other_outputs, strict=True)] == [1, 1]
    for mine, other in zip(masks, other_masks, strict=True):
        assert 0.25 < same(mine, other) < 0.75
    assert 0.25 < same(*masks) < 0.75


def test_without_the_style_the_parts_have_equal_masks(pool: GlooPool) -> None:
    (masks, _, _), (other_masks, _, _) = pool.run(call, 2, False, None)
    assert [same(a, b) for a, b in zip(masks, other_masks, strict=True)] == [1, 1]


def test_recomputation_changes_no_gradient(pool: GlooPool) -> None:
    kept, again = (pool.run(call, 2, True, policy) for policy in (None, "full"))
    for (_, _, first), (_, _, second) in zip(kept, again, strict=True):
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
