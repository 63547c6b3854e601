"""Conversion of models: complex numbers, whole ones and quantised weights stay what they are."""

from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.profile.workload import Workload
from synth.runtime.conversion import Conversion
from synth.runtime.models import ModelSpec, build_model
from synth.runtime.profiling.profile_model import profile_model

ROTARY = '''
import torch
from torch import nn


class Rotary(nn.Module):
    """Turns pairs of numbers by angles (Meta's Llama), and takes the loss if there are targets."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("freqs_cis", torch.polar(torch.ones(4, 4), torch.rand(4, 4)))
        self.register_buffer("places", torch.arange(4))

    def forward(self, x, targets=None):
        x = self.inner(x)
        turned = torch.view_as_complex(x.float().unflatten(-1, (4, 2))) * self.freqs_cis
        y = torch.view_as_real(turned).flatten(-2)[:, self.places].type_as(x)
        return y if targets is None else nn.functional.cross_entropy(y.mT, targets)


def listed():
    return [nn.Embedding(8, 8), Rotary(), Rotary()]


def yielded():
    yield from listed()
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "rotary.py"
    made.write_text(ROTARY)
    return made


@pytest.mark.parametrize("function", ["listed", "yielded"])
def test_a_complex_table_keeps_its_imaginary_part_and_the_profile_says_so(
    file: Path, function: str
) -> None:
    spec = ModelSpec(f"{file}:{function}", {})
    whole = build_model(spec, seed=0).layers[1]
    converted = build_model(spec, seed=0, dtype=torch.bfloat16).layers[1]
    assert isinstance(converted.freqs_cis, Tensor) and isinstance(whole.freqs_cis, Tensor)
    assert converted.freqs_cis.is_complex() and torch.equal(converted.freqs_cis, whole.freqs_cis)
    assert {p.dtype for p in converted.parameters()} == {torch.bfloat16}
    workload = Workload(model=spec.factory, micro_batch_size=2, sequence_length=4, dtype="bfloat16")
    profile = profile_model(workload, torch.device("cpu"), warmup=1, iterations=2)
    assert profile.provenance.notes == (
        "parameters and buffers of float32 were converted to bfloat16; kept as they are: "
        "freqs_cis (complex64), places (int64)"
    )
    # 8 * 8 + 8 numbers of 2 bytes, 16 complex ones of 8, and 4 whole ones of 8
    assert profile.layer_profile(1).parameter_bytes == 2 * 72 + 8 * 16 + 8 * 4


def test_nothing_is_said_if_nothing_was_converted(file: Path) -> None:
    workload = Workload(model=f"{file}:listed", micro_batch_size=2, sequence_length=4)
    profile = profile_model(workload, torch.device("cpu"), warmup=1, iterations=2)
    assert profile.provenance.notes is None


def test_tied_complex_and_quantised_parameters_stay_what_they_are() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    module.turn = nn.Parameter(torch.ones(2, dtype=torch.complex64) * 1j)
    module.small = nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn), requires_grad=False)
    module.register_buffer("is_kept", torch.tensor([True, False]))
    module.register_buffer("wide", torch.ones(2, dtype=torch.float64))
    conversion = Conversion(torch.bfloat16)
    assert conversion.apply(module) is module
    assert module[1].weight is module[0].weight and module[0].weight.dtype == torch.bfloat16
    assert module.turn.dtype == torch.complex64 and module.turn.imag.tolist() == [1, 1]
    assert module.small.dtype == torch.float8_e4m3fn
    assert isinstance(module.is_kept, Tensor) and module.is_kept.dtype == torch.bool
    assert isinstance(module.wide, Tensor) and module.wide.dtype == torch.bfloat16
    assert conversion.described == (
        "parameters and buffers of float32 and float64 were converted to bfloat16; kept as they "
        "are: is_kept (bool), small (float8_e4m3fn), turn (complex64)"
    )


class Routed(nn.Module):
    """Keeps its router in float32, whatever it is moved to."""

    angles: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.router, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("angles", torch.ones(2, dtype=torch.complex64))

    def to(self, *arguments: Any, **keywords: Any) -> Self:
        angles = self.angles
        super().to(*arguments, **keywords)
        self.router.to(torch.float32)
        self.angles = angles
        return self


@pytest.mark.filterwarnings("ignore:Complex modules", "ignore:Casting complex values")
def test_a_modules_own_conversion_is_followed() -> None:
    conversion = Conversion(torch.bfloat16)
    module = conversion.apply(Routed())
    assert {name: parameter.dtype for name, parameter in module.named_parameters()} == {
        "router.weight": torch.float32,
        "router.bias": torch.float32,
        "out.weight": torch.bfloat16,
        "out.bias": torch.bfloat16,
    }
    assert conversion.described == (
        "parameters and buffers of float32 were converted to bfloat16; kept as they are: angles "
        "(complex64), router.bias (float32), router.weight (float32)"
    )


@pytest.mark.filterwarnings("ignore:Complex modules", "ignore:Casting complex values")
def test_a_modules_own_conversion_that_loses_values_is_refused() -> None:
    class Careless(Routed):
        def to(self, *arguments: Any, **keywords: Any) -> Self:
            return nn.Module.to(self, *arguments, **keywords)

    with pytest.raises(SynthError, match=r"Careless\.to converts angles of complex64 to bfloat16"):
        Conversion(torch.bfloat16).apply(Careless())
