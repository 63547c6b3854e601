"""Layers without trained parameters are measured as autograd runs them at their place."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.costs.partition_costs import partition_costs
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.runtime.execution.stage.layer_chain import LayerChain
from synth.runtime.profiling.held_bytes import held_bytes
from synth.runtime.profiling.profile_model import profile_layers
from synth.runtime.profiling.sample import Sample

WIDTH, ROWS = 64, 128
BOUNDARY_BYTES = ROWS * WIDTH * 4


class Block(nn.Module):
    """A residual MLP, frozen or not, and with an adapter of rank 4 or without."""

    def __init__(self, *, frozen: bool = False, adapted: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.BatchNorm1d(2 * WIDTH), nn.GELU(),
            nn.Linear(2 * WIDTH, WIDTH),
        )  # fmt: skip
        self.body.requires_grad_(not (frozen or adapted))
        self.adapter = (
            nn.Sequential(nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False))
            if adapted
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.adapter(x) + self.body(x)
        return y


class Head(nn.Module):
    """A linear layer and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = nn.functional.cross_entropy(self.linear(x), targets)
        return loss


class Whole(LayerChain):
    """All layers as if they were the last one."""

    def forward(self, *inputs: Any, targets: Any = None) -> Any:
        x, targets = inputs
        loss: Tensor = super().forward(x, targets=targets)
        return loss


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, WIDTH), torch.randint(10, (ROWS,))


def profiled(layers: Sequence[nn.Module]) -> Profile:
    return profile_layers(layers, *batch(), warmup=0, iterations=1)


def test_equal_frozen_layers_are_two_kinds_before_and_after_the_first_trained_one() -> None:
    frozen = [Block(frozen=True) for _ in range(5)]
    profile = profiled([*frozen[:3], Block(), *frozen[3:], Head()])
    kinds = [layer.profile for layer in profile.layers]
    assert kinds[1] == kinds[2] != kinds[4] == kinds[5]
    before, after = profile.layer_profile(2), profile.layer_profile(4)
    assert (before.saved_bytes, before.saved_w_bytes) == (0, 0)
    assert (before.output_bytes, before.returned_bytes) == (BOUNDARY_BYTES, 0)
    assert before.static_bytes == before.parameter_bytes
    assert after.returned_bytes == after.output_bytes == BOUNDARY_BYTES
    assert after.saved_bytes > 0
    assert after.saved_w_bytes < 0.01 * after.saved_bytes


def test_an_adapter_has_a_w_and_its_frozen_base_only_a_b() -> None:
    adapted = Block(adapted=True)
    profile = profiled([Block(frozen=True), Block(frozen=True), adapted, Block(), Head()])
    first, trained = profile.layer_profile(2), profile.layer_profile(3)
    adapter_bytes = sum(p.numel() * p.element_size() for p in adapted.adapter.parameters())
    assert first.gradient_bytes == adapter_bytes
    assert first.returned_bytes == BOUNDARY_BYTES
    assert first.saved_bytes < trained.saved_bytes
    assert first.saved_w_bytes < trained.saved_w_bytes


@pytest.mark.parametrize(
    "layers",
    [
        [*(Block(frozen=True) for _ in range(4)), Block(), Block(), Head()],
        [Block(), *(Block(frozen=True) for _ in range(3)), Block(), Head()],
        [*(Block(frozen=True) for _ in range(2)), *(Block(adapted=True) for _ in range(3)), Head()],
        [*(Block(adapted=True) for _ in range(4)), Head().requires_grad_(False)],
    ],
    ids=["prefix", "middle", "adapters behind a prefix", "adapters and a frozen head"],
)
def test_layers_add_up_to_the_bytes_that_a_stage_really_holds(layers: list[nn.Module]) -> None:
    [added] = partition_costs(profiled(layers), [len(layers)]).stages
    for parameter in (p for layer in layers for p in layer.parameters() if p.requires_grad):
        parameter.grad = torch.zeros_like(parameter)
    x, targets = batch()
    real = held_bytes(Sample(Whole(layers), x, targets, is_first=True))
    assert added.saved_bytes == pytest.approx(real.saved_bytes, rel=0.01)
    assert added.saved_w_bytes == pytest.approx(real.saved_w_bytes, rel=0.01)
    assert added.rise_bytes[OpKind.B] == pytest.approx(real.rise_bytes[OpKind.B], rel=0.01)
    assert added.rise_bytes[OpKind.F] <= 1.06 * real.rise_bytes[OpKind.F]
    for kind in (OpKind.F, OpKind.B, OpKind.W, OpKind.BW):
        assert added.rise_bytes[kind] >= 0.99 * real.rise_bytes[kind] - 256  # a few scalars
