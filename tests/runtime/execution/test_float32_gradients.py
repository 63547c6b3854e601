"""Gradients of bfloat16 parameters that accumulate in float32."""

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerSpec
from synth.runtime.optimize import StepSettings, build_steps, held_bytes, static_bytes
from synth.runtime.split import Recorder, SplitTape, enter

MICRO_BATCHES = 128


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.LayerNorm(24), nn.Linear(24, 24))


def accumulate(module: nn.Module, *, fused: bool) -> None:
    """Add up the gradients of many micro-batches, by B and W or by BW."""
    recorder, dtype = Recorder(module), next(module.parameters()).dtype
    for j in range(MICRO_BATCHES):
        x = torch.randn(8, 24, generator=torch.Generator().manual_seed(j)).to(dtype)
        tape, (entered, _) = SplitTape(), enter(x)
        if fused:
            module(entered).float().pow(2).mean().backward()
            continue
        y = recorder.forward(tape, module, entered)
        recorder.backward_input(tape, y.float().pow(2).mean())
        tape.backward_weight()


def relative_error(found: nn.Module, true: nn.Module) -> float:
    pairs = list(zip(found.parameters(), true.parameters(), strict=True))
    error = torch.stack([(_grad(a).double() - _grad(b)).norm() for a, b in pairs]).norm()
    return float(error / torch.stack([_grad(b).norm() for _, b in pairs]).norm())


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.parametrize("fused", [False, True])
def test_float32_sums_are_closer_than_bfloat16_ones(fused: bool) -> None:
    errors = {}
    exact = build().bfloat16().double()
    accumulate(exact, fused=True)
    for spec in ("adamw+master", "adamw+master+float32-gradients"):
        module = build().bfloat16()
        settings = StepSettings(learning_rate=0.0)
        steps = build_steps(
            {0: module}, OptimizerSpec.parse(spec), settings, device=torch.device("cpu")
        )
        steps.begin()
        accumulate(module, fused=fused)
        errors[spec] = relative_error(module, exact)
        held = held_bytes([module], steps)
        assert held == static_bytes([module], OptimizerSpec.parse(spec))
    narrow, wide = errors.values()
    assert wide < 3e-3 and wide < narrow / 4, errors


def test_float32_gradients_need_master_weights() -> None:
    with pytest.raises(SynthError, match="--master-weights"):
        OptimizerSpec.parse("adamw+float32-gradients")


def test_a_spec_without_float32_gradients_is_written_as_before() -> None:
    assert "float32_gradients" not in OptimizerSpec().model_dump()
    spec = OptimizerSpec.parse("sgd:0.9+master+float32-gradients+post-validation")
    assert OptimizerSpec.parse(str(spec)) == spec
    assert OptimizerSpec.model_validate(spec.model_dump()) == spec
