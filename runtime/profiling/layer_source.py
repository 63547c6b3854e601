"""The layers of a model to measure: whole in the host's memory, or made one at a time."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn

from synth.profile.workload import Workload

from ..dtypes import dtype_of
from ..models import (
    ModelSpec,
    build_layers,
    each_layer,
    is_built_in,
    layer_names,
    makes_one_at_a_time,
    materialise,
    outline_of,
)
from ..models.user_function import UserCodeFailed
from ..seeds import seeded
from ..training.building import calls_of
from ..training.layered_stage import LayerCall

Fill = Callable[[LayerCall], LayerCall]


@dataclass(frozen=True)
class LayerSource:
    """The layers of a model, with data, or on the meta device without.

    `fill` is called in the order of the layers, for those that are run, and returns them with data.
    """

    calls: Sequence[LayerCall]
    names: Sequence[str]
    fill: Fill = lambda call: call

    @classmethod
    def of(cls, workload: Workload, seed: int) -> Self:
        """Make the layers of a workload; without data if they can be made one by one."""
        spec, dtype = ModelSpec(workload.model, workload.arguments), dtype_of(workload.dtype)
        if is_built_in(spec.factory):
            return cls.of_layers(workload, outline_of(spec), _fill_built_in(seed, dtype))
        if makes_one_at_a_time(spec):
            outline = _outline(spec)
            if outline is not None:
                return cls.of_layers(workload, outline, _FillYielded(spec, seed, dtype))
        layers = build_layers(spec, seed=seed, dtype=dtype)
        return cls.of_layers(workload, list(layers.values()))

    @classmethod
    def of_layers(
        cls, workload: Workload, layers: Sequence[nn.Module], fill: Fill = lambda call: call
    ) -> Self:
        """Pair layers with how the workload calls them."""
        names = layer_names(layers)
        return cls(calls_of(workload, dict(enumerate(layers)), names), names, fill)


def _outline(spec: ModelSpec) -> list[nn.Module] | None:
    """Make all layers without data; None if the user's function needs data while it makes them."""
    try:
        return outline_of(spec)
    except UserCodeFailed:
        return None


def _fill_built_in(seed: int, dtype: torch.dtype) -> Fill:
    def fill(call: LayerCall) -> LayerCall:
        layer = materialise(copy.deepcopy(call.module), seed, call.index)
        return replace(call, module=layer.to(dtype=dtype))

    return fill


class _FillYielded:
    """Advances a user's function until it yields the layer that is to be run."""

    def __init__(self, spec: ModelSpec, seed: int, dtype: torch.dtype) -> None:
        self._layers: Iterator[tuple[int, nn.Module]] = enumerate(each_layer(spec))
        self._seed, self._dtype = seed, dtype

    def __call__(self, call: LayerCall) -> LayerCall:
        with seeded(self._seed + call.index):
            layer = next(layer for index, layer in self._layers if index == call.index)
        return replace(call, module=layer.to(dtype=self._dtype))
