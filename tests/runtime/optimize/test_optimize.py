"""Optimizer steps of one process: torch's bits, taken back and redone without a trace."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerKind, OptimizerSpec
from synth.runtime.optimize import (
    PostValidatedStep,
    StageOptimizer,
    StepSettings,
    build_steps,
    static_bytes,
)

CPU = torch.device("cpu")
STEPS = 8
SPECS = {
    "adamw": OptimizerSpec(),
    "sgd": OptimizerSpec(kind=OptimizerKind.SGD),
    "momentum": OptimizerSpec(kind=OptimizerKind.SGD, momentum=0.9),
}
Disturb = Callable[[int, Tensor], None]


def build_module(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Sizes beyond one piece and no multiple of a vector; a buffer; a frozen parameter."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(521, 509), nn.BatchNorm1d(509), nn.Linear(509, 3, bias=False))
    for frozen in module[2].parameters():
        frozen.requires_grad = False
    return module.to(dtype)


def gradient(step: int, index: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + index)
    return torch.randn(like.shape, generator=generator).to(like.dtype)


def no_disturbance(step: int, gradient: Tensor) -> None:
    pass


def sometimes_large(step: int, gradient: Tensor) -> None:
    gradient.mul_(100 if step % 3 == 1 else 1e-3)


def sometimes_infinite(step: int, gradient: Tensor) -> None:
    if step in (0, 3, 4):
        gradient.view(-1)[-1] = float("nan" if step == 3 else "inf")


def train(
    spec: OptimizerSpec,
    disturb: Disturb,
    *,
    clip_norm: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[nn.Module, object]:
    module = build_module(dtype)
    steps = build_steps({0: module}, spec, settings(0), device=CPU, clip_norm=clip_norm)
    for step in range(STEPS):
        steps.settings = settings(step)
        steps.begin()
        steps.validate()
        trainable = [p for p in module.parameters() if p.requires_grad]
        for index, parameter in enumerate(trainable):
            assert parameter.grad is not None and not parameter.grad.any()
            parameter.grad += gradient(step, index, parameter)
            disturb(step, parameter.grad)
        steps.synchronize()
        steps.step(0)
    steps.finish()
    return module, steps


def settings(step: int) -> StepSettings:
    """The learning rate changes, so that a step redone later must remember its own."""
    return StepSettings(learning_rate=1e-2 / (1 + step), weight_decay=0.1, betas=(0.8, 0.95))


def same_bits(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def late(spec: OptimizerSpec) -> OptimizerSpec:
    return spec.replace(post_validation=True)


@pytest.mark.parametrize("name", SPECS)
def test_the_synchronous_step_is_torch_s(name: str) -> None:
    module, _ = train(SPECS[name], no_disturbance)
    truth = build_module()
    if name == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(
            truth.parameters(), weight_decay=0.1, betas=(0.8, 0.95), fused=True
        )
    else:
        momentum = SPECS[name].momentum
        optimizer = torch.optim.SGD(
            truth.parameters(), momentum=momentum, weight_decay=0.1, fused=True
        )
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = settings(step).learning_rate
        for index, parameter in enumerate(p for p in truth.parameters() if p.requires_grad):
            parameter.grad = gradient(step, index, parameter)
        optimizer.step()
    assert same_bits(module, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("master", [False, True], ids=["", "master"])
@pytest.mark.parametrize("clip_norm", [None, 1e-4, 1.0, 1e9], ids=str)
@pytest.mark.parametrize("disturb", [no_disturbance, sometimes_large, sometimes_infinite])
@pytest.mark.parametrize("name", SPECS)
def test_post_validation_gives_the_bits_of_the_synchronous_step(
    name: str, disturb: Disturb, clip_norm: float | None, master: bool, dtype: torch.dtype
) -> None:
    spec = SPECS[name].replace(master_weights=master)
    truth, _ = train(spec, disturb, clip_norm=clip_norm, dtype=dtype)
    module, _ = train(late(spec), disturb, clip_norm=clip_norm, dtype=dtype)
    assert same_bits(module, truth)
    assert all(p.isfinite().all() for p in module.parameters())


def test_the_cases_above_are_what_they_say() -> None:
    def counts(disturb: Disturb, clip_norm: float | None) -> tuple[int, int]:
        _, steps = train(late(SPECS["adamw"]), disturb, clip_norm=clip_norm)
        assert isinstance(steps, PostValidatedStep)
        return steps.num_redone, steps.num_skipped

    assert counts(no_disturbance, 1e9) == (0, 0)
    assert counts(no_disturbance, 1e-4) == (STEPS, 0)
    assert counts(sometimes_large, 1.0) == (3, 0)
    assert counts(sometimes_infinite, None) == (0, 3)
    assert counts(sometimes_infinite, 1e-4) == (STEPS - 3, 3)


@pytest.mark.parametrize("post_validation", [False, True])
def test_master_weights_keep_steps_too_small_for_bfloat16(post_validation: bool) -> None:
    def moved(master: bool) -> bool:
        spec = OptimizerSpec(
            kind=OptimizerKind.SGD, master_weights=master, post_validation=post_validation
        )
        weight = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
        nn.init.constant_(weight.weight, 1.0)
        steps = build_steps({0: weight}, spec, StepSettings(1.0), device=CPU)
        for _ in range(64):  # half of bfloat16's distance from 1 to the next below is 2 ** -9
            steps.begin()
            steps.validate()
            assert weight.weight.grad is not None
            weight.weight.grad += 2.0**-12
            steps.synchronize()
            steps.step(0)
        steps.finish()
        return weight.weight.item() != 1.0

    assert moved(master=True)
    assert not moved(master=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("master", [False, True], ids=["", "master"])
@pytest.mark.parametrize("post_validation", [False, True], ids=["", "late"])
@pytest.mark.parametrize("name", SPECS)
def test_the_bytes_said_are_the_bytes_held(
    name: str, post_validation: bool, master: bool, dtype: torch.dtype
) -> None:
    spec = SPECS[name].replace(master_weights=master, post_validation=post_validation)
    module = build_module(dtype)
    optimizer = StageOptimizer(module.parameters(), spec)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    tensors = [*module.parameters(), *module.buffers()]
    tensors += [p.grad for p in module.parameters() if p.grad is not None]
    held = sum(t.numel() * t.element_size() for t in tensors) + optimizer.state_bytes()
    assert static_bytes([module], spec) == held


def _stepped_in_bfloat16(settings: StepSettings, steps: int) -> StageOptimizer:
    draw = torch.Generator().manual_seed(4)
    weight = nn.Parameter((0.02 * torch.randn(1000, generator=draw)).bfloat16())
    optimizer = StageOptimizer([weight], OptimizerSpec(master_weights=True))
    for step in range(steps):
        weight.grad = gradient(step, 0, weight)
        optimizer.step(settings)
        optimizer.show()
    return optimizer


def test_the_newest_weights_are_predicted_from_the_master_copy_and_rounded_once() -> None:
    """At this rate most updates are smaller than half a step of bfloat16."""
    settings, steps, ahead = StepSettings(1e-5), 5, 3
    optimizer = _stepped_in_bfloat16(settings, steps)
    (weight,) = optimizer.weights
    first = weight.state["exp_avg"] / (1 - settings.betas[0] ** steps)
    second = weight.state["exp_avg_sq"] / (1 - settings.betas[1] ** steps)
    direction = first / (second.sqrt() + settings.eps)
    before = weight.live.detach().clone()

    def moved(start: Tensor) -> Tensor:
        return start.float().sub(direction, alpha=ahead * settings.learning_rate).bfloat16()

    assert not torch.equal(moved(weight.master), moved(before))
    for from_newest, start in ((True, weight.master), (False, before)):
        with optimizer.predicted(settings, ahead, from_newest=from_newest):
            assert torch.equal(weight.live, moved(start))
        assert torch.equal(weight.live, before)


def test_before_the_first_update_the_weights_are_predicted_to_stay() -> None:
    optimizer = _stepped_in_bfloat16(StepSettings(1e-5), steps=0)
    before = optimizer.weights[0].live.detach().clone()
    with optimizer.predicted(StepSettings(1e-5), 3, from_newest=True):
        assert torch.equal(optimizer.weights[0].live, before)


class _NoScalarRead(TorchDispatchMode):
    """Refuses to read a number from a tensor, for which the host waits for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_to_predict_weights_the_host_does_not_wait_for_the_device() -> None:
    settings = StepSettings(1e-5)
    optimizer = _stepped_in_bfloat16(settings, steps=1)
    with _NoScalarRead():
        with pytest.raises(AssertionError):
            int(torch.ones(()))
        with optimizer.predicted(settings, 1, from_newest=True):
            pass


def test_post_validation_costs_a_copy_of_the_parameters_or_none_beside_master_weights() -> None:
    def extra(dtype: torch.dtype, master: bool) -> int:
        spec = OptimizerSpec(master_weights=master)
        module = build_module(dtype)
        return static_bytes([module], late(spec)) - static_bytes([module], spec)

    trainable = sum(p.numel() for p in build_module().parameters() if p.requires_grad)
    assert extra(torch.float32, master=False) == 4 * trainable
    assert extra(torch.bfloat16, master=False) == 2 * trainable
    assert extra(torch.bfloat16, master=True) == 0


def test_nothing_to_validate_is_refused() -> None:
    with pytest.raises(SynthError, match="nothing to validate"):
        build_steps(
            {0: build_module()},
            late(OptimizerSpec()),
            StepSettings(0.1),
            device=CPU,
            skip_nonfinite=False,
        )


@pytest.mark.parametrize(
    "text", ["adamw", "sgd", "sgd:0.9", "adamw+master", "sgd:0.95+master+post-validation"]
)
def test_an_optimizer_is_written_as_it_is_read(text: str) -> None:
    assert str(OptimizerSpec.parse(text)) == text


@pytest.mark.parametrize("text", ["", "adam", "adamw:0.9", "sgd:1", "adamw+", "+master"])
def test_an_unknown_optimizer_is_refused_with_what_can_be_written(text: str) -> None:
    with pytest.raises(SynthError, match="write adamw or sgd:MOMENTUM"):
        OptimizerSpec.parse(text)


@pytest.mark.parametrize("name", SPECS)
def test_complex_parameters_are_updated_as_torch_does(name: str) -> None:
    torch.manual_seed(0)
    module = nn.Linear(5, 3, dtype=torch.complex64)
    own = [p.detach().clone().requires_grad_() for p in module.parameters()]
    steps = build_steps({0: module}, SPECS[name], settings(0), device=CPU, clip_norm=None)
    momentum = SPECS[name].momentum
    by_torch: torch.optim.Optimizer = (
        torch.optim.AdamW(own, 1e-2, betas=(0.8, 0.95), weight_decay=0.1)
        if name == "adamw"
        else torch.optim.SGD(own, 1e-2, momentum=momentum, weight_decay=0.1)
    )
    for step in range(STEPS):
        steps.begin()
        for index, (parameter, twin) in enumerate(zip(module.parameters(), own, strict=True)):
            twin.grad = torch.complex(
                *(gradient(step, 2 * index + k, parameter.real) for k in (0, 1))
            )
            parameter.grad = twin.grad.clone()
        steps.synchronize()
        steps.step(0)
        by_torch.step()
    for parameter, twin in zip(module.parameters(), own, strict=True):
        torch.testing.assert_close(parameter, twin)
