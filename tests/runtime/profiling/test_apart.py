"""Layers that share more than registered parameters and outputs are refused by the profile."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import synth
from synth.errors import SynthError
from synth.runtime.profiling.profile_model import profile_layers
from tests.runtime.profiling.layers_that_share import (
    ASIDE,
    WIDTH,
    WORDS,
    Block,
    Calls,
    Gives,
    OwnHead,
    Plain,
    angles_of_all,
    attributes_of_another,
    buffer_of_another,
    constants_of_another,
    constants_of_another_alone,
    detached_attributes_of_another,
    detached_weight_of_another,
    globals_of_all,
    hidden_weight,
    means_of_another,
    memory_of_all,
    number_of_a_weight_of_another,
    numbers_of_another,
    own_state_given_on,
    random_table_of_all,
    result_of_another,
    shared_parameters,
    shared_statistics,
    tables_of_all,
)


def measured(layers: list[nn.Module]) -> list[str]:
    ids = torch.randint(WORDS, (2, 6), generator=torch.Generator().manual_seed(0))
    profile = profile_layers(layers, ids, ids.flip(1), warmup=0, iterations=1)
    return list(profile.layer_profiles)


@pytest.fixture(autouse=True)
def nothing_aside() -> None:
    ASIDE.clear()


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        (hidden_weight, "layer Head.2 computes with weight of layer Embedding.0, which is not am"),
        (attributes_of_another, r"layer OwnHead.2 computes with a tensor of shape \[\] of layer B"),
        (
            detached_attributes_of_another,
            r"OwnHead.2 computes with a tensor of shape \[\] of layer",
        ),
        (globals_of_all, r"Masked.1 computes with a tensor of shape \[2, 6\] of layer Masks.0"),
        (
            detached_weight_of_another,
            "layer Reads.2 computes with linear.weight of layer Plain.1, w",
        ),
        (buffer_of_another, "layer Reads.2 computes with gains of layer Plain.1, which is not am"),
        (
            result_of_another,
            r"Reads.2 computes with a tensor of shape \[2, 6, 8\] of layer Shares.1",
        ),
        (numbers_of_another, "each by itself .* a layer reads what another one keeps in a global"),
        (means_of_another, "each by itself .* a layer reads what another one keeps in a global"),
        (constants_of_another, "each by itself .* a layer reads what another one keeps in a glo"),
        (constants_of_another_alone, r"layer Scales.2 fails where no .*\(KeyError: 'scale'\)"),
        (random_table_of_all, "each by itself .* a layer reads what another one keeps in a glob"),
        (number_of_a_weight_of_another, "each by itself .* a layer reads what another one keeps"),
        (shared_statistics, r"layers Calls.1 and Calls.2 share the buffer block.norm.running_mean"),
    ],
)
def test_layers_that_share_what_ranks_do_not_are_refused(
    layers: Callable[[], list[nn.Module]], reason: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(SynthError, match=reason):
        measured(layers())


@pytest.mark.parametrize(
    "layers",
    [
        tables_of_all,
        memory_of_all,
        lambda: buffer_of_another(persistent=False),
        lambda: angles_of_all(is_parameter=False),
        lambda: angles_of_all(is_parameter=True),
    ],
)
def test_layers_may_share_what_each_rank_makes_anew(layers: Callable[[], list[nn.Module]]) -> None:
    torch.manual_seed(0)
    assert len(measured(layers())) >= 3


@pytest.mark.parametrize(
    "second",
    [
        lambda own: own.table.weight,
        lambda own: own.table.weight[:, :1],
        lambda own: own.table.weight.detach(),
        lambda own: own.mean,
        lambda own: own.mean[:1],
    ],
    ids=["parameter", "part", "detached", "buffer", "part of a buffer"],
)
def test_layers_may_give_on_their_parameters_and_buffers(
    second: Callable[[Gives], Tensor],
) -> None:
    torch.manual_seed(0)
    assert measured(own_state_given_on(second)) == ["Gives.0", "Weighs.1", "OwnHead.2"]


def test_shared_parameters_and_own_state_are_measured_and_stay() -> None:
    torch.manual_seed(0)
    layers = shared_parameters()
    before = [p.clone() for layer in layers for p in layer.state_dict().values()]
    assert measured(layers) == ["Embedding.0", "Calls.1", "Block.3", "OwnHead.4"]
    after = [p for layer in layers for p in layer.state_dict().values()]
    assert all(map(torch.equal, before, after))
    assert all(p.grad is None for layer in layers for p in layer.parameters())


class Dropped(Plain):
    """A layer that is left out at random (LayerDrop), by another generator than torch's."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self._draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self._draw() < 0.5 else x * 1.0


@pytest.mark.parametrize("draw", [random.random, np.random.random])
def test_layers_may_draw_from_python_and_numpy(draw: Callable[[], float]) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(WORDS, WIDTH)
    layers = [table, *(Dropped(draw) for _ in range(6)), OwnHead(table.weight)]
    before = random.getstate(), str(np.random.get_state())
    assert "Dropped.1" in measured(layers)
    assert before == (random.getstate(), str(np.random.get_state()))


class FloatLoss(nn.Module):
    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return (x.float() - targets.float()).square().mean()


@pytest.mark.parametrize(("dtype", "autocast"), [("bfloat16", None), ("float32", "bfloat16")])
def test_encoders_in_evaluation_mode_are_measured(dtype: str, autocast: str | None) -> None:
    """Without a graph PyTorch has a fused kernel, which rounds otherwise or fails."""
    torch.manual_seed(0)
    flops = []
    for is_training in (True, False):
        parts = [nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(3)]
        layers = [layer.to(getattr(torch, dtype)).train(is_training) for layer in parts]
        x = torch.randn(8, 16, 64).to(getattr(torch, dtype))
        profile = profile_layers(
            [*layers, FloatLoss()], x, x, warmup=0, iterations=1, autocast=autocast
        )
        assert len(profile.layers) == 4
        flops.append(profile.layer_profile(0).forward_flops)
    assert flops[0] == flops[1]
    assert torch.backends.mha.get_fastpath_enabled()


class Overwrites(Plain):
    """Changes what its backward needs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(self.linear(x))


def test_a_layer_whose_backward_fails_is_named() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(WORDS, WIDTH)
    with pytest.raises(
        SynthError, match=r"layer Overwrites.2 cannot be measured: RuntimeError: one"
    ):
        measured([table, Plain(), Overwrites(), OwnHead(table.weight)])


def test_layers_without_sizes_are_refused() -> None:
    ids = torch.zeros(2, 6, dtype=torch.long)
    layers = [
        nn.Embedding(WORDS, WIDTH),
        nn.LazyLinear(WIDTH),
        OwnHead(nn.Parameter(torch.ones(2))),
    ]
    with pytest.raises(SynthError, match="layer 1 has a LazyLinear, whose sizes are unknown"):
        profile_layers(layers, ids, ids, warmup=0, iterations=1)
    with pytest.raises(SynthError, match="Sequential has a LazyLinear, whose sizes are unknown"):
        synth.cut_model(nn.Sequential(*layers), ids, ids)


class Whole(nn.Module):
    """A model whose blocks share a module."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Calls(block) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def test_blocks_of_a_whole_model_that_share_statistics_are_refused() -> None:
    ids = torch.randint(WORDS, (2, 6), generator=torch.Generator().manual_seed(0))
    layers = synth.cut_model(Whole(Block()), ids, ids)
    with pytest.raises(SynthError, match=r"blocks.0 and blocks.1 share the buffer .*running_mean"):
        profile_layers(layers, ids, ids, warmup=0, iterations=1)
    layers = synth.cut_model(Whole(Plain()), ids, ids)
    assert len(profile_layers(layers, ids, ids, warmup=0, iterations=1).layers) == 5
