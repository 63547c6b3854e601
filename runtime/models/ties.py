"""Parameters that several layers of a model share, such as an embedding's weight and a head's."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn


class Tie(NamedTuple):
    """One parameter under several names: (index of the layer, name within it)."""

    places: tuple[tuple[int, str], ...]

    @property
    def name(self) -> str:
        """A name that every rank makes the same: that of the first place."""
        index, name = self.places[0]
        return f"{index}.{name}"


def find_ties(layers: Sequence[nn.Module]) -> tuple[Tie, ...]:
    """The parameters that more than one layer holds."""
    places: dict[int, list[tuple[int, str]]] = {}
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            places.setdefault(id(parameter), []).append((index, name))
    return tuple(Tie(tuple(found)) for found in places.values() if len(found) > 1)


def keep_tied(layers: Mapping[int, nn.Module], ties: Sequence[Tie]) -> dict[str, nn.Parameter]:
    """Tie parameters of some layers again, which moving the layers one by one may have separated.

    Returns:
        The shared parameter of each tie that involves one of these layers, by the tie's name.
    """
    kept: dict[str, nn.Parameter] = {}
    for tie in ties:
        for index, name in tie.places:
            if index in layers:
                owner, _, last = name.rpartition(".")
                module = layers[index].get_submodule(owner)
                parameter = kept.setdefault(tie.name, module.get_parameter(last))
                setattr(module, last, parameter)
    return kept
