"""Layers that change what they are given in place: equal gradients, or a refusal by name."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from synth.errors import RunFailure, SynthError
from synth.families import generate
from synth.plan.recompute.layers_in_place import stages_in_place
from synth.profile import Profile
from synth.runtime.execution.base.boundary import Boundary, flatten
from synth.runtime.execution.base.stage_protocol import ForwardInput
from synth.runtime.execution.stage.stage import Stage
from synth.runtime.models.layered_stage import LayeredStage, layer_calls
from synth.runtime.profiling.profile_model import profile_layers
from tests.runtime.rank_threads import RankThreads, draw_weights, group_here

WIDTH, MICRO_BATCHES = 4, 4


class Reads(nn.Module):
    """Gives a scale on as it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        y = torch.tanh(self.linear(given["x"]) + given["scale"])
        return {"x": y, "scale": given["scale"]}


class Halves(Reads):
    """Changes a tensor in its dictionary."""

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        given["scale"].mul_(0.5)
        return super().forward(given)


class Fills(Reads):
    """Changes its dictionary, not a tensor in it."""

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        given["x"] = torch.tanh(self.linear(given["x"]) + given["scale"])
        return given


class Takes(nn.Module):
    """Takes its input out of the dictionary, and shifts the targets in place if it is to."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.linear, self.shift = nn.Linear(WIDTH, WIDTH), shift

    def forward(self, given: dict[str, Tensor], targets: Tensor) -> Tensor:
        if self.shift:
            targets.add_(self.shift)
        return nn.functional.mse_loss(self.linear(given.pop("x")), targets)


def numbers(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(3, WIDTH, generator=draw),
        "scale": torch.rand(3, 1, generator=draw),
    }


def gradients(modules: list[nn.Module]) -> list[Tensor | None]:
    return [p.grad for module in modules for p in module.parameters()]


def by_torch(layers: list[nn.Module]) -> list[Tensor | None]:
    for seed in range(MICRO_BATCHES):
        given: Any = numbers(seed)
        for layer in layers[:-1]:
            given = layer(given)
        (layers[-1](given, torch.ones(3, WIDTH)) / MICRO_BATCHES).backward()
    return gradients(layers)


def trained(rank: int, size: int, family: str, layers: list[nn.Module]) -> dict[int, Any]:
    from synth.runtime.batch import Batch
    from synth.runtime.pipeline import Pipeline

    schedule = generate(family, size, MICRO_BATCHES)
    mine = {n: layers[n] for n, _ in schedule.placement.held[rank]}
    pipeline = Pipeline(schedule, mine, group=group_here(), timeout_s=60)
    given = [numbers(seed) for seed in range(MICRO_BATCHES)]
    pipeline.step(Batch(given, [torch.ones(3, WIDTH) for _ in given]))
    return {n: gradients([module]) for n, module in mine.items()}


def made(*kinds: nn.Module) -> list[nn.Module]:
    draw_weights(kinds, seed=3)
    return list(kinds)


@pytest.mark.parametrize("middle", [Halves, Fills])
def test_a_stage_may_change_what_one_of_its_rank_gave(middle: type[Reads]) -> None:
    layers = made(middle(), middle(), middle(), Takes(0.5))
    found = RankThreads().run(trained, 2, "zb-v", layers)
    wanted = iter(by_torch(layers))
    for number in range(4):
        for gradient in (found[0] | found[1])[number]:
            torch.testing.assert_close(gradient, next(wanted))


@pytest.mark.parametrize(
    "layers", [(Halves(), Takes()), (Fills(), Takes(0.5))], ids=["an input", "the targets"]
)
def test_r_of_changed_inputs_or_targets_is_refused(layers: tuple[nn.Module, ...]) -> None:
    with pytest.raises(RunFailure, match=r"changes its input in place, or its targets, .*--recomp"):
        RankThreads().run(trained, 2, "gpipe:recompute", list(layers))


def test_r_is_refused_if_a_later_stage_has_changed_its_input() -> None:
    stage, given = Stage(Reads(), is_first=False, is_last=False), numbers(0)
    whole = ForwardInput(flatten(given)[0], Boundary.of(given, trained=True))
    stage.forward_light(0, whole)
    given["scale"].mul_(0.5)
    with pytest.raises(SynthError, match="a stage, or one after it, changes its input in place"):
        stage.rebuild(0, whole)


def stage_of(layers: list[nn.Module], recomputed: tuple[int, ...]) -> LayeredStage:
    calls = layer_calls(
        dict(enumerate(layers)),
        [str(i) for i in range(len(layers))],
        autocast=None,
        recomputed=(),
        recomputed_layers=recomputed,
    )
    return LayeredStage(list(calls.values()), is_first=True, is_last=True)


def train_recomputed(layers: list[nn.Module], recomputed: tuple[int, ...]) -> list[Tensor | None]:
    stage = stage_of(layers, recomputed)
    stage.begin()
    for seed in range(MICRO_BATCHES):
        stage.forward(seed, ForwardInput((numbers(seed),), None, torch.ones(3, WIDTH)))
        stage.backward_input(seed, (torch.tensor(1 / MICRO_BATCHES),))
        stage.backward_weight(seed)
    stage.end()
    return gradients(layers)


@pytest.mark.parametrize("who", [0, 1, 3])
def test_a_recomputed_layer_that_changes_what_it_is_given_is_refused(who: int) -> None:
    layers = made(Halves(), Halves(), Reads(), Takes(0.5))
    with pytest.raises(SynthError, match=rf"layer {who} \(\w+\), or one after it, changes its inp"):
        train_recomputed(layers, (who,))


def test_a_recomputed_layer_whose_input_a_later_layer_changes_is_refused() -> None:
    with pytest.raises(SynthError, match=r"layer 0 \(Reads\), or one after it, changes its input"):
        train_recomputed(made(Reads(), Halves(), Takes()), (0,))


def test_recomputed_layers_may_change_their_dictionaries_and_others_their_tensors() -> None:
    layers = made(Halves(), Fills(), Fills(), Takes())
    found = train_recomputed(layers, (1, 2, 3))
    for layer in layers:
        layer.zero_grad()
    for mine, true in zip(found, by_torch(layers), strict=True):
        torch.testing.assert_close(mine, true)


def test_layers_that_change_their_dictionaries_and_targets_are_measured() -> None:
    layers, targets, given = made(Fills(), Halves(), Takes(0.5)), torch.ones(3, WIDTH), numbers(0)
    profile = profile_layers(layers, given, targets, warmup=0, iterations=2)
    assert [entry.profile for entry in profile.layers] == ["Fills.0", "Halves.1", "Takes.2"]
    assert torch.equal(targets, torch.ones(3, WIDTH)) and list(given) == ["x", "scale"]
    halves = profile.layer_profiles["Halves.1"]
    assert halves.recompute_saved_bytes == halves.saved_bytes + halves.output_bytes


def test_a_profile_says_that_a_later_layer_changes_the_inputs_or_the_targets() -> None:
    layers = made(nn.Identity(), Halves(), Reads(), Takes(0.5))
    batch = (numbers(0), torch.ones(3, WIDTH))
    profile = profile_layers(layers, *batch, warmup=0, iterations=1)
    assert profile.changed_inputs == {0, 1, 3, len(layers)}
    refused = stages_in_place(profile, [2, 2], [0, 1])
    assert refused[0].startswith("first layer, Identity.0, changes its input in place, or one af")
    assert refused[1].startswith("last layer, Takes.3, changes the targets in place")
    with pytest.raises(RunFailure, match="changes its input in place, or its targets"):
        RankThreads().run(trained, 2, "gpipe:recompute", [nn.Sequential(*layers[:2]), Takes()])
    assert Profile.from_json(profile.to_json()).changed_inputs == profile.changed_inputs


class Averaged(nn.Module):
    """Has a frozen copy of its weights that each forward moves, which a backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.average = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            self.average.weight.lerp_(self.linear.weight, 0.1)
        x = torch.tanh(self.linear(given["x"]))
        return {"x": x + self.average(x), "scale": given["scale"]}


def test_a_weight_that_a_backward_needs_and_a_later_forward_changes_is_named_so() -> None:
    layers = made(Averaged(), Takes())
    batch = (numbers(0), torch.ones(3, WIDTH))
    assert len(profile_layers(layers, *batch, warmup=0, iterations=1).layers) == 2
    with pytest.raises(RunFailure, match=r"while several micro-batches are under way.*`clone`\)"):
        RankThreads().run(trained, 2, "1f1b", layers)
