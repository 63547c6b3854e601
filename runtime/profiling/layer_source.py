"""The layers of a model to measure: whole in the host's memory, or made one at a time."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from synth.profile.workload import Workload

from ..conversion import Conversion
from ..dtypes import dtype_of
from ..input_function import spec_of
from ..models import (
    ModelSpec,
    build_model,
    cut_in_words,
    each_layer,
    is_built_in,
    layer_names,
    makes_one_at_a_time,
    materialise,
    outline_of,
)
from ..models.layered_stage import LayerCall, calls_of
from ..models.ties import Tie, find_ties
from ..models.user_function import UserCodeFailed
from ..seeds import seeded

Fill = Callable[[LayerCall], LayerCall]


@dataclass(frozen=True)
class LayerSource:
    """The layers of a model, with data, or on the meta device without.

    `fill` is called in the order of the layers, for those that are run, and returns them with data.
    `ties` are the parameters that several of them share. `conversion` has converted them; None:
    they are as they were given. `notes` says how a whole model was cut; None: it was not.
    """

    calls: Sequence[LayerCall]
    names: Sequence[str]
    ties: Sequence[Tie]
    fill: Fill = lambda call: call
    conversion: Conversion | None = None
    notes: str | None = None

    @classmethod
    def of(cls, workload: Workload, seed: int) -> Self:
        """Make the layers of a workload; without data if they can be made one by one."""
        spec = spec_of(workload, workload.model, workload.inputs, check=True)
        conversion = Conversion(dtype_of(workload.dtype))
        made = cls._outlined(workload, spec, seed, conversion)
        if made is None:
            layers = list(build_model(spec, seed=seed).layers.values())
            made = cls.of_layers(workload, layers)
            for layer in layers:
                conversion.apply(layer)
        return replace(made, conversion=conversion)

    @classmethod
    def _outlined(
        cls, workload: Workload, spec: ModelSpec, seed: int, conversion: Conversion
    ) -> Self | None:
        """Make layers without data, to be filled one by one; None if that cannot be."""
        if is_built_in(spec.factory):
            return cls.of_layers(workload, outline_of(spec), _fill_built_in(seed, conversion))
        outline = _outline(spec) if makes_one_at_a_time(spec) else None
        if outline is None:
            return None
        return cls.of_layers(workload, outline, _FillYielded(spec, seed, conversion))

    @classmethod
    def of_layers(
        cls, workload: Workload, layers: Sequence[nn.Module], fill: Fill = lambda call: call
    ) -> Self:
        """Pair layers with how the workload calls them."""
        names = layer_names(layers)
        calls = calls_of(workload, dict(enumerate(layers)), names)
        return cls(calls, names, find_ties(layers), fill, notes=cut_in_words(layers))


def _outline(spec: ModelSpec) -> list[nn.Module] | None:
    """Make all layers without data; None if the user's function needs data while it makes them."""
    try:
        return outline_of(spec)
    except UserCodeFailed:
        return None


def _fill_built_in(seed: int, conversion: Conversion) -> Fill:
    def fill(call: LayerCall) -> LayerCall:
        layer = materialise(copy.deepcopy(call.module), seed, call.index)
        return replace(call, module=conversion.apply(layer))

    return fill


class _FillYielded:
    """Advances a user's function until it yields the layer that is to be run."""

    def __init__(self, spec: ModelSpec, seed: int, conversion: Conversion) -> None:
        self._layers: Iterator[tuple[int, nn.Module]] = enumerate(each_layer(spec))
        self._seed, self._conversion = seed, conversion

    def __call__(self, call: LayerCall) -> LayerCall:
        with seeded(self._seed + call.index):
            layer = next(layer for index, layer in self._layers if index == call.index)
        return replace(call, module=self._conversion.apply(layer))
