"""Sizes of the parameters that several layers share, from the layers that were measured."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from torch import nn

from synth.op_kinds import OpKind
from synth.profile.layer_profile import Layer, LayerProfile
from synth.profile.optimizer import OptimizerSpec
from synth.profile.tied_parameters import TiedParameters

from ..models.ties import Tie


class ParameterSizes(NamedTuple):
    """The bytes of one parameter, and its part of the trained elements of its layer."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    trained_share: float


class LayerSizes(dict[str, ParameterSizes]):
    """The sizes of a layer's parameters, by their names in it."""

    @classmethod
    def of(cls, layer: nn.Module, spec: OptimizerSpec) -> Self:
        """Look at a layer in the dtype of the run."""
        trained = sum(p.numel() for p in layer.parameters() if p.requires_grad)
        named = layer.named_parameters(remove_duplicate=False)
        return cls({name: _sizes(parameter, spec, trained) for name, parameter in named})


def _sizes(parameter: nn.Parameter, spec: OptimizerSpec, trained: int) -> ParameterSizes:
    size = parameter.numel(), parameter.element_size()
    if not parameter.requires_grad:
        return ParameterSizes(size[0] * size[1], 0, 0, 0.0)
    return ParameterSizes(
        size[0] * size[1],
        spec.gradient_bytes(*size),
        spec.state_bytes(*size),
        size[0] / max(1, trained),
    )


def tied_parameters(
    ties: Iterable[Tie],
    layers: Sequence[Layer],
    profiles: Mapping[str, LayerProfile],
    sizes: Mapping[str, LayerSizes],
) -> tuple[TiedParameters, ...] | None:
    """The tied parameters of a profile, those of the same layers together; None: there are none.

    The time of their update is their part of the trained elements of the layer where it is least.

    Args:
        ties: the parameters that several layers share.
        layers: all layers, with the names of their profiles.
        profiles: the profiles of the layers that were measured.
    """
    found: dict[tuple[bool, tuple[str, ...]], TiedParameters] = {}
    for tie in ties:
        names = tuple(layers[index].name for index, _ in tie.places)
        one = _tied(tie, names, layers, profiles, sizes)
        key = (bool(one.gradient_bytes), names)
        found[key] = found[key].together_with(one) if key in found else one
    return tuple(found.values()) or None


def _tied(
    tie: Tie,
    names: tuple[str, ...],
    layers: Sequence[Layer],
    profiles: Mapping[str, LayerProfile],
    sizes: Mapping[str, LayerSizes],
) -> TiedParameters:
    of_layers = [(layers[index].profile, name) for index, name in tie.places]
    first = sizes[of_layers[0][0]][of_layers[0][1]]
    steps_us = (
        sizes[layer][name].trained_share * profiles[layer].time_us[OpKind.STEP].median_us
        for layer, name in of_layers
    )
    return TiedParameters(
        layers=names,
        parameter_bytes=first.parameter_bytes,
        gradient_bytes=first.gradient_bytes,
        optimizer_bytes=first.optimizer_bytes,
        step_us=round(min(steps_us), 3),
    )
