"""Layers that share more than registered parameters and outputs are refused by the profile."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import synth
from synth.errors import SynthError
from synth.runtime.profiling.profile_model import profile_layers

WORDS, WIDTH = 16, 8
ASIDE: dict[str, Any] = {}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)
        self.norm, self.aux = nn.BatchNorm1d(WIDTH), 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.drop(torch.tanh(self.norm(self.linear(x).mT).mT))
        self.aux = y.square().mean()
        return y


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.tanh(self.linear(x))
        return x + y


class Calls(nn.Module):
    """A layer of a module that others have, too."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


class Head(nn.Module):
    """Ends in logits of a weight, and adds a loss that it finds elsewhere."""

    def __init__(self, weight: Callable[[], Tensor], aux: Callable[[], Any] = lambda: 0.0) -> None:
        super().__init__()
        self.norm, self._weight, self._aux = nn.LayerNorm(WIDTH), weight, aux

    def forward(self, x: Tensor, targets: Tensor) -> Any:
        logits = F.linear(self.norm(x), self._weight())
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + self._aux()


class OwnHead(Head):
    """Has the weight as a parameter."""

    def __init__(self, weight: Tensor, aux: Callable[[], Any] = lambda: 0.0) -> None:
        super().__init__(lambda: self.weight, aux)
        self.weight = weight


class Masks(nn.Embedding):
    """Leaves a mask in a global, which later layers read."""

    def forward(self, ids: Tensor) -> Tensor:
        ASIDE["mask"] = (ids > WORDS // 2)[..., None]
        return super().forward(ids)


class Masked(Plain):
    def forward(self, x: Tensor) -> Tensor:
        masked: Tensor = super().forward(x) * ASIDE.get("mask", 1)
        return masked


def hidden_weight() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    return [table, Plain(), Head(lambda: table.weight)]


def attributes_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Block()
    return [table, block, OwnHead(table.weight, lambda: block.aux)]


def detached_attributes_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Block()
    return [table, block, OwnHead(table.weight, lambda: torch.as_tensor(block.aux).detach())]


class Logs(Plain):
    """A layer that leaves the mean of its output as a number, which a later one multiplies by."""

    def forward(self, x: Tensor) -> Tensor:
        scale, y = ASIDE.get("scale", 1.0), super().forward(x)
        ASIDE["scale"] = 1 + float(y.detach().square().mean())
        return y * scale


def numbers_of_another() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    return [table, Logs(), Logs(), OwnHead(table.weight)]


class Reads(Plain):
    """Adds what a function returns, without a gradient."""

    def __init__(self, read: Callable[[], Tensor]) -> None:
        super().__init__()
        self._read = read

    def forward(self, x: Tensor) -> Tensor:
        # Too little to be seen in a loss, and a copy in part.
        y = super().forward(x)
        y[:, 0] += 1e-9 * self._read().detach().mean()
        return y


def detached_weight_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Plain()
    return [table, block, Reads(lambda: block.linear.weight.t()), OwnHead(table.weight)]


def buffer_of_another(*, persistent: bool = True) -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Plain()
    block.register_buffer("gains", torch.ones(WIDTH), persistent=persistent)
    return [table, block, Reads(lambda: block.gains), OwnHead(table.weight)]  # type: ignore[arg-type, return-value]


class Shares(Plain):
    """Leaves its result in an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last + 0


def result_of_another() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Shares()
    return [table, block, Reads(lambda: block.last), OwnHead(table.weight)]


class Caches(Plain):
    """Makes a table for all layers, if none has, and counts and scratches in tensors of all."""

    def forward(self, x: Tensor) -> Tensor:
        if "table" not in ASIDE:
            ASIDE["table"] = torch.arange(WIDTH).to(x).cos()
            ASIDE["count"], ASIDE["scratch"] = torch.zeros(2), torch.zeros_like(x)
        ASIDE["count"] += x.detach().mean()
        ASIDE["scratch"].copy_(x.detach())
        return super().forward(x * ASIDE["table"]) + ASIDE["scratch"] * 2


def tables_of_all() -> list[nn.Module]:
    table = nn.Embedding(WORDS, WIDTH)
    return [table, Caches(), Caches(), OwnHead(table.weight)]


def globals_of_all() -> list[nn.Module]:
    table = Masks(WORDS, WIDTH)
    return [table, Masked(), OwnHead(table.weight)]


def shared_statistics() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Block()
    return [table, Calls(block), Calls(block), OwnHead(table.weight)]


def shared_parameters() -> list[nn.Module]:
    table, block = nn.Embedding(WORDS, WIDTH), Plain()
    return [table, Calls(block), Calls(block), Block(), OwnHead(table.weight)]


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
        (numbers_of_another, "one micro-batch after the other .* a layer reads what another one k"),
        (shared_statistics, r"layers Calls.1 and Calls.2 share the buffer block.norm.running_mean"),
    ],
)
def test_layers_that_share_what_ranks_do_not_are_refused(
    layers: Callable[[], list[nn.Module]], reason: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(SynthError, match=reason):
        measured(layers())


@pytest.mark.parametrize("layers", [tables_of_all, lambda: buffer_of_another(persistent=False)])
def test_layers_may_share_what_each_rank_makes_anew(layers: Callable[[], list[nn.Module]]) -> None:
    torch.manual_seed(0)
    assert len(measured(layers())) >= 3


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
