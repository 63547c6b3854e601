"""Models whose parameters have no values yet are otherwise as they are with values."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import synth
from synth.errors import SynthError
from synth.families import generate
from synth.runtime.checkpoint.loading import fill
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.models.empty import allocate_parameters
from synth.runtime.models.loading import build_model
from synth.runtime.models.spec import ModelSpec
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan


class Tied(nn.Module):
    """Its embedding and its head share a parameter, which is made first."""

    def __init__(self) -> None:
        super().__init__()
        weight = nn.Parameter(torch.randn(8, 4))
        weight.no_weight_decay = True  # type: ignore[attr-defined]
        self.embed, self.head = nn.Embedding(8, 4), nn.Linear(4, 8)
        self.embed.weight = weight
        self.head.weight = weight


def test_parameters_that_a_variable_ties_stay_tied() -> None:
    with synth.empty_parameters():
        first, second = Tied(), Tied()
    for model in (first, second):
        assert model.embed.weight is model.head.weight
        assert model.embed.weight.is_meta
    assert first.embed.weight is not second.embed.weight
    allocate_parameters([first], "cpu")
    assert first.embed.weight is first.head.weight and not first.head.weight.is_meta


def test_attributes_of_parameters_stay() -> None:
    with synth.empty_parameters():
        model: Any = Tied()
    model.head.bias.is_mine = True
    assert model.embed.weight.no_weight_decay
    allocate_parameters([model], "cpu")
    assert model.embed.weight.no_weight_decay and model.head.bias.is_mine


class Scaled(nn.Module):
    """A block with a buffer that files of weights have."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.tanh(self.linear(x)) * self.scale
        return y


class Blocks(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.blocks = nn.ModuleList(Scaled() for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


@pytest.mark.parametrize("family", ["weipipe", "zero3", "1f1b"])
def test_loaded_buffers_are_on_every_rank_that_computes_with_them(
    family: str, tmp_path: Path
) -> None:
    tokens = torch.arange(64).reshape(8, 8) % 32
    model = Blocks()
    for buffer in model.buffers():
        buffer.copy_(torch.rand(8) + 1)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    layers = synth.cut_model(Blocks(), tokens[:1], tokens[:1], check=False)
    profile = profile_layers(layers, tokens[:1], tokens[:1], warmup=0, iterations=1)
    half = len(layers) // 2
    plan = Plan.of(profile, [half, len(layers) - half], generate(family, 2, 8))

    def train(group: Any) -> Any:
        pipeline = synth.Pipeline(plan, copy.deepcopy(layers), group=group, timeout_s=60)
        synth.load_weights(tmp_path, pipeline)
        return pipeline.step(pipeline.split(tokens, targets=tokens))

    losses = [loss for loss in run_ranks(2, train) if loss is not None]
    expected = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    assert float(sum(losses)) == pytest.approx(float(expected.detach()), rel=1e-5)


OWN = """
import torch
from torch import nn
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        mean = self.linear.weight.detach().abs().mean()
        self.register_buffer("scale", mean, persistent=False)
    def forward(self, x):
        return self.linear(x) * self.scale
def layers():
    return [nn.Linear(4, 4), Scaled()]
def normed():
    return [nn.Linear(4, 4), nn.utils.spectral_norm(nn.Linear(4, 4))]
def plain():
    return [nn.Linear(4, 4), nn.Linear(4, 4)]
"""


@pytest.mark.parametrize("function", ["layers", "normed", "plain"])
def test_what_is_computed_from_parameters_has_values(
    function: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    spec = ModelSpec(f"{tmp_path / 'own.py'}:{function}", empty=True)
    layers = build_model(spec, seed=0).layers.values()
    assert not any(tensor.is_meta for layer in layers for tensor in layer.buffers())
    said = capsys.readouterr().err
    assert ("is computed from parameters when it is made" in said) == (function != "plain")
    assert any(layer.weight.any() for layer in layers if isinstance(layer, nn.Linear)) == (
        function != "plain"  # whose parameters are zeros until they are read
    )


def test_a_tensor_without_memory_is_not_loaded_into() -> None:
    with pytest.raises(SynthError, match=r"shape \[2\] .* is on the meta device"):
        fill(torch.empty(2, device="meta"), torch.ones(2))
