"""Walking a model to profile it: one layer on the device at a time, each kind run once."""

from dataclasses import dataclass
from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.profile.workload import Workload
from synth.runtime.models.layered_stage import LayerCall
from synth.runtime.profiling.layer_walk import VisitedLayer, random_tokens, walk_layers

DEVICE = torch.device("meta")  # stands for one with too little memory for all layers
WORKLOAD = Workload(model="of this test", micro_batch_size=2, sequence_length=4)


class Recorded(nn.Module):
    """A layer without parameters that knows where it is and how often it ran."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times = times
        self._device, self._runs = "cpu", 0

    def to(self, *arguments: Any, **keywords: Any) -> Self:
        self._device = str(arguments[0])
        return super().to(*arguments, **keywords)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        assert self._device == "meta"
        self._runs += 1
        return x.float().repeat(1, self.times) if targets is None else x.sum() + targets.sum()


def walked(layers: list[Recorded], *, separate: bool = False) -> list[VisitedLayer]:
    """Every step of the walk, looking at where the layers are at each."""
    calls = [LayerCall(index, layer) for index, layer in enumerate(layers)]
    names = [str(index) for index in range(len(layers))]
    batch = random_tokens(layers[0], WORKLOAD, seed=0)
    steps = []
    for visited in walk_layers(calls, names, batch, DEVICE, separate=separate):
        there = [layer for layer in layers if layer._device == "meta"]
        assert there in ([], [layers[int(visited.name)]])
        assert visited.sample is None or (there, visited.sample.layer) == (
            [visited.sample.layer],
            there[0],
        )
        steps.append(visited)
    assert all(layer._device == "cpu" for layer in layers)
    return steps


def test_one_layer_is_on_the_device_at_a_time_and_identical_ones_are_run_once() -> None:
    layers = [Recorded() for _ in range(6)]
    steps = walked(layers)
    assert [visited.same_as for visited in steps] == ["0", "1", "1", "1", "1", "5"]
    assert [visited.sample is not None for visited in steps] == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    assert [layer._runs for layer in layers] == [1, 1, 0, 0, 0, 1]


def test_an_identical_layer_that_gives_another_shape_than_it_takes_is_run_for_it() -> None:
    layers = [Recorded(), Recorded(2), Recorded(2), Recorded(1), Recorded(1), Recorded()]
    steps = walked(layers)
    shapes = [tuple(visited.sample.x.shape) for visited in steps if visited.sample is not None]
    assert shapes == [(2, 4), (2, 4), (2, 8), (2, 16), (2, 16)]
    assert [layer._runs for layer in layers] == [1, 1, 1, 1, 0, 1]


def test_identical_layers_that_take_turns_with_others_are_run_but_not_measured_again() -> None:
    class Halved(Recorded):
        def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
            return super().forward(x, targets)[:, ::2].contiguous()

    layers = [Recorded(), Recorded(2), Halved(), Recorded(2), Halved(), Recorded()]
    steps = walked(layers)
    assert [visited.same_as for visited in steps] == ["0", "1", "2", "1", "2", "5"]
    assert [layer._runs for layer in layers] == [1] * 6
    last = steps[-1].sample
    assert last is not None
    assert tuple(last.x.shape) == (2, 4)


class Placed(Recorded):
    """A layer that knows its place, and whose work may depend on it."""

    def __init__(self, layer_idx: int, every: int = 1, times: float = 1.0) -> None:
        super().__init__()
        self.layer_idx, self.layer_name = layer_idx, f"model.layers.{layer_idx}"
        self.options = Options(times)
        self._every = every

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        y = super().forward(x, targets) * (1 / (self.layer_idx + 1))
        return y.exp() if self.layer_idx % self._every else y


@dataclass
class Options:
    times: float


def test_numbers_and_names_of_places_alone_make_no_other_layer() -> None:
    layers = [Recorded(), *(Placed(place) for place in range(4)), Recorded()]
    steps = walked(layers)
    assert [visited.same_as for visited in steps] == ["0", "1", "1", "1", "1", "5"]
    assert [visited.is_elsewhere for visited in steps] == [False, False, True, True, True, False]
    assert [layer._runs for layer in layers] == [1] * 6


def test_layers_whose_ops_depend_on_their_places_are_measured_apart() -> None:
    layers = [Recorded(), *(Placed(place, every=2) for place in range(4)), Recorded()]
    assert [visited.same_as for visited in walked(layers)] == ["0", "1", "2", "1", "2", "5"]
    others = [Recorded(), Placed(0), Placed(1, times=2.0), Placed(2), Recorded()]
    assert [visited.same_as for visited in walked(others)] == ["0", "1", "2", "1", "4"]


def test_layers_can_be_measured_apart_whatever_they_are() -> None:
    steps = walked([Recorded() for _ in range(4)], separate=True)
    assert [visited.same_as for visited in steps] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("wrong", ["no tensor", "no scalar"])
def test_what_is_no_tensor_or_no_loss_is_refused(wrong: str) -> None:
    class Wrong(Recorded):
        def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
            return [x] if wrong == "no tensor" else x

    with pytest.raises(SynthError, match=r"needed: (one tensor|the scalar loss)"):
        walked([Recorded(), Wrong()])


@dataclass
class Held:
    x: Tensor


def test_a_dataclass_that_torch_does_not_know_names_the_way_to_register_it() -> None:
    class Holding(Recorded):
        def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
            return Held(x)

    with pytest.raises(SynthError, match=r"a Held in it; .*_pytree.register_dataclass\(Held\)$"):
        walked([Recorded(), Holding(), Recorded()])
