"""Forwards that a user does not see leave counters and other state as they were."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.stage import shapes
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.optimize.snapshot import IterationSnapshot
from synth.runtime.profiling.profile_model import profile_layers


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.count, self.log, self.plain = 0, list[int](), torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.log.append(self.count)
        self.plain.add_(1)
        y: Tensor = self.norm(self.inner(x))
        return y

    def counted(self) -> tuple[int, int, float, float]:
        mean = self.norm.running_mean
        assert mean is not None
        return self.count, len(self.log), float(self.plain[0]), float(mean.abs().sum())


class CountingLoss(Counting):
    def forward(self, x: Tensor, targets: Any = None) -> Tensor:
        return super().forward(x).square().mean()


UNCHANGED = (0, 0, 0.0, 0.0)


def test_a_trial_of_a_wrapped_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "is_wrapped", property(lambda stage: True))
    module = Counting()
    stage = Stage(module, is_first=True, is_last=False)
    shapes._try_out(stage, (torch.ones(2, 4),), None, {})
    assert module.counted() == UNCHANGED


def test_layers_that_are_profiled() -> None:
    layers = [Counting(), CountingLoss()]
    profile_layers(layers, torch.ones(3, 4), torch.ones(3), warmup=1, iterations=1)
    assert [layer.counted() for layer in layers] == [UNCHANGED, UNCHANGED]


class Differentiating(nn.Module):
    """Runs a backward within its forward, so that the first F is run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.inner(x))
        (gradient,) = torch.autograd.grad(y.sum(), self.inner.weight, create_graph=True)
        return y * gradient.square().mean()


def test_the_loss_after_a_first_f_that_is_run_twice() -> None:
    loss = CountingLoss()
    stage = Stage(Differentiating(), is_first=True, is_last=True, loss=loss)
    for microbatch in range(3):
        stage.forward(microbatch, ForwardInput((torch.randn(2, 4),), targets=torch.ones(2)))
    assert loss.counted()[:3] == (3, 3, 3.0)


def test_an_iteration_that_is_begun_again() -> None:
    module = Counting()
    snapshot = IterationSnapshot([module], torch.device("cpu"))
    for _ in range(4):
        snapshot.mark()
        module(torch.randn(3, 4))
    want = module.counted()
    snapshot.mark()
    module(torch.randn(3, 4))
    module(torch.randn(3, 4))
    snapshot.restore()
    assert module.counted() == want
