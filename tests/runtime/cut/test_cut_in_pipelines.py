"""A `Pipeline` takes a whole model that was cut, with a plan for its layers."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import synth
from synth.errors import Mismatch, SynthError
from synth.families import generate
from synth.runtime.execution.transport.in_process.ranks import run_ranks
from synth.runtime.models.cut.whole import loss_call
from synth.runtime.profiling.profile_model import profile_layers
from synth.schedule.files.plan_file import Plan
from tests.runtime.cut.whole_models import WORDS, Gpt, Llama, Repeating


def tokens(count: int) -> Tensor:
    return torch.randint(WORDS, (count, 8), generator=torch.Generator().manual_seed(count))


def plan_of(model: Any, **changes: Any) -> Plan:
    layers = synth.cut_model(model, tokens(2), tokens(2))
    profile = profile_layers(layers, tokens(2), tokens(2), warmup=0, iterations=1)
    sizes = [2, len(profile.layers) - 2]
    return Plan.of(profile, sizes, generate("1f1b", 2, 3)).replace(**changes)


@pytest.mark.parametrize("recomputed", [None, (1, 2)])
def test_each_rank_runs_its_layers_and_recomputes_those_of_the_plan(
    recomputed: tuple[int, ...] | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Llama()
    plan = plan_of(model, recomputed_layers=recomputed)
    inputs, targets = tokens(6), tokens(6).flip(0)

    def train(group: Any) -> tuple[Tensor | None, list[Tensor | None]]:
        own = copy.deepcopy(model)
        layers = synth.cut_model(own, inputs[:2], targets[:2])
        pipeline = synth.Pipeline(plan, layers, group=group, timeout_s=60)
        loss = pipeline.step(pipeline.split(inputs, targets=targets))
        return loss, [parameter.grad for parameter in own.parameters()]

    (_, first), (loss, last) = run_ranks(2, train)
    expected = loss_call(model)(inputs, targets)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for parameter, *found in zip(model.parameters(), first, last, strict=True):
        (gradient,) = [each for each in found if each is not None]
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "shared"), [(Gpt, "lm_head.weight"), (Repeating, "blocks.0.0.weight")]
)
def test_tied_parameters_are_summed_over_the_ranks(kind: type[nn.Module], shared: str) -> None:
    torch.manual_seed(0)
    model = kind().eval()  # no dropout
    plan = plan_of(model)
    inputs, targets = tokens(6), tokens(6).flip(0)

    def train(group: Any) -> Tensor | None:
        own = copy.deepcopy(model)
        layers = synth.cut_model(own, inputs[:2], targets[:2])
        pipeline = synth.Pipeline(plan, layers, group=group, timeout_s=60)
        pipeline.step(pipeline.split(inputs, targets=targets))
        return own.get_parameter(shared).grad

    gradients = run_ranks(2, train)
    loss_call(model)(inputs, targets).backward()
    for gradient in gradients:
        expected = model.get_parameter(shared).grad
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_pieces_of_several_ranks_that_share_a_parameter_need_its_name() -> None:
    torch.manual_seed(0)
    model = Gpt().eval()  # no dropout
    layers = synth.cut_model(model, tokens(2), tokens(2))
    inputs, targets = tokens(6), tokens(6).flip(0)

    def train(group: Any, *, is_tied: bool) -> Tensor | None:
        own = copy.deepcopy(layers)
        pieces = own[2:] if group.rank else own[:2]
        (weight,) = (p for name, p in pieces[-group.rank].named_parameters() if WORDS in p.shape)
        options: Any = {"tied": {"table": weight}} if is_tied else {}
        schedule = generate("1f1b", 2, 3)
        pipeline = synth.Pipeline(schedule, pieces, group=group, timeout_s=60, **options)
        pipeline.step(pipeline.split(inputs, targets=targets))
        return weight.grad

    with pytest.raises(SynthError, match=r"have transformer\.wte\.weight of the .* tied="):
        run_ranks(2, partial(train, is_tied=False))
    gradients = run_ranks(2, partial(train, is_tied=True))
    loss_call(model)(inputs, targets).backward()
    for gradient in gradients:
        torch.testing.assert_close(gradient, model.lm_head.weight.grad, rtol=1e-4, atol=1e-6)


class Transposing(nn.Module):
    """Reads a property of torch between its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(8, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x.mT)
        out: Tensor = self.head(x)
        return out


def test_layers_of_a_model_can_be_copied() -> None:
    model = Transposing()
    layers = copy.deepcopy(synth.cut_model(model, tokens(2), tokens(2)))
    value: Any = tokens(2)
    for layer in layers[:-1]:
        value = layer(value)
    loss = layers[-1](value, tokens(2))
    torch.testing.assert_close(loss, loss_call(model)(tokens(2), tokens(2)))


def test_a_schedule_or_another_plan_is_refused() -> None:
    layers = synth.cut_model(Llama(), tokens(2), tokens(2))
    other = plan_of(Gpt())
    with pytest.raises(SynthError, match="needs a plan, which says which layers a stage has"):
        run_ranks(2, lambda group: synth.Pipeline(generate("1f1b", 2, 3), layers, group=group))
    with pytest.raises(Mismatch, match="the model has the layers tok_embeddings, "):
        run_ranks(2, lambda group: synth.Pipeline(other, layers, group=group))


def test_ranks_of_one_process_cut_a_model_with_dropout() -> None:
    torch.manual_seed(0)
    models = [Gpt() for _ in range(4)]
    cuts = run_ranks(4, lambda group: len(cut_of(models[group.rank])))
    assert cuts == [5] * 4


def cut_of(model: Gpt) -> Any:
    for _ in range(3):
        layers = synth.cut_model(model, tokens(2), tokens(2))
    return layers
