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


class Adapted(nn.Module):
    """A frozen linear layer beside trained ones of low rank, as LoRA has them."""

    def __init__(self, frozen: nn.Linear, size: int = 2) -> None:
        super().__init__()
        self.frozen = frozen
        self.down, self.up = nn.Linear(8, size, bias=False), nn.Linear(size, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def adapted_layers(is_frozen: bool = True) -> list[nn.Module]:
    torch.manual_seed(0)
    shared = nn.Linear(8, 8).requires_grad_(not is_frozen)
    return [Adapted(shared), nn.Tanh(), Adapted(shared), Loss()]


def test_frozen_ones_need_nothing_and_adapters_get_the_gradients_of_the_uncut_model() -> None:
    profile = profile_layers(adapted_layers(), X[:2], X[:2], warmup=0, iterations=1)
    made, whole = Plan.of(profile, [2, 2], generate("zb-h1", 2, 2)), adapted_layers()
    assert [tie.trained for tie in made.costs.ties] == [False]
    assert Plan.from_json(made.to_json()).costs == made.costs

    def train(group: Any, layers: list[nn.Module] = whole) -> list[Tensor | None]:
        own = copy.deepcopy(layers)
        pipeline = synth.Pipeline(made, made.modules(group.rank, own), group=group, timeout_s=60)
        pipeline.step(pipeline.split(X, targets=X.flip(0)))
        return [p.grad for stage in pipeline.stages.values() for p in stage.module.parameters()]

    x = X
    for layer in whole[:-1]:
        x = layer(x)
    whole[-1](x, X.flip(0)).backward()
    expected = [p.grad for half in (whole[:2], whole[2:]) for p in nn.ModuleList(half).parameters()]
    found = [gradient for own in run_ranks(2, train) for gradient in own]
    assert sum(gradient is not None for gradient in expected) == 4
    torch.testing.assert_close(found, expected)

    trained = adapted_layers(is_frozen=False)
    with pytest.raises(SynthError, match=r"plan share parameters, which ranks 0, 1"):
        run_ranks(2, lambda group: train(group, trained))


def test_frozen_ones_that_are_trained_here_are_refused_beside_other_frozen_layers() -> None:
    def layers() -> list[nn.Module]:
        shared = nn.Linear(8, 8).requires_grad_(False)
        others = [nn.Linear(8, 8).requires_grad_(False) for _ in range(2)]
        return [others[0], Adapted(shared), Adapted(shared), others[1], Loss()]

    profile = profile_layers(layers(), X[:2], X[:2], warmup=0, iterations=1)
    made, whole = Plan.of(profile, [2, 3], generate("1f1b", 2, 2)), layers()
    whole[1].get_submodule("frozen").requires_grad_(True)

    def prepare(group: Any) -> None:
        synth.Pipeline(made, made.modules(group.rank, copy.deepcopy(whole)), group=group)

    with pytest.raises(SynthError, match=r"plan share parameters, which ranks 0, 1"):
        run_ranks(2, prepare)
