"""A plan whose profile has shared parameters: a `Pipeline` is given them, or that none are."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import synth
from synth.errors import SynthError
from synth.families import generate
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Loss(nn.Module):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(x, target)


def layers() -> list[nn.Module]:
    """Return a list in which one layer stands twice."""
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    return [shared, nn.Tanh(), nn.Linear(8, 8), shared, Loss()]


def plan() -> Plan:
    profile = profile_layers(layers(), X[:2], X[:2], warmup=0, iterations=1)
    return Plan.of(profile, [2, 3], generate("zb-h1", 2, 2))


def gradients(**options: Any) -> list[Tensor | None]:
    """Return those of the shared weight, as each rank has it."""
    made, whole = plan(), layers()  # once: ranks are threads of one random generator

    def train(group: Any) -> Tensor | None:
        own = copy.deepcopy(whole)
        tied = {"tied": {"w": own[0].weight, "b": own[0].bias}} if options.get("tied") else options
        modules = made.modules(group.rank, own)
        pipeline = synth.Pipeline(made, modules, group=group, timeout_s=60, **tied)
        pipeline.step(pipeline.split(X, targets=X.flip(0)))
        return own[0].get_parameter("weight").grad

    return run_ranks(2, train)


def expected() -> Tensor:
    own = layers()
    x = X
    for layer in own[:-1]:
        x = layer(x)
    own[-1](x, X.flip(0)).backward()
    found = own[0].get_parameter("weight").grad
    assert found is not None
    return found


def test_without_them_it_is_refused() -> None:
    with pytest.raises(
        SynthError, match=r"plan share parameters, which ranks 0.* frozen, or not sha"
    ):
        gradients()


def test_with_them_their_gradients_are_summed() -> None:
    for found in gradients(tied=True):
        torch.testing.assert_close(found, expected())


def test_they_may_be_apart_on_purpose() -> None:
    first, last = gradients(tied={})
    assert first is not None and last is not None
    torch.testing.assert_close(first + last, expected())
