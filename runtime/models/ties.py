"""Parameters that several layers of a model share, such as an embedding's weight and a head's."""

import copy
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from synth.errors import SynthError


class Tie(NamedTuple):
    """One parameter under several names: (index of the layer, name within it)."""

    places: tuple[tuple[int, str], ...]

    @property
    def name(self) -> str:
        """A name that every rank makes the same: that of the first place."""
        index, name = self.places[0]
        return f"{index}.{name}"


class TieFinder:
    """Finds the parameters that several layers hold; layers may be dropped after they were added.

    A parameter that nothing else holds is gone with its layer, and its id may be another's then.
    """

    def __init__(self) -> None:
        self._places: list[list[tuple[int, str]]] = []
        self._known: dict[int, tuple[weakref.ref[nn.Parameter], list[tuple[int, str]]]] = {}

    def add(self, index: int, layer: nn.Module) -> None:
        """Look at the next layer."""
        for name, parameter in layer.named_parameters():
            reference, places = self._known.get(id(parameter), (None, []))
            if reference is None or reference() is not parameter:
                places = []
                self._places.append(places)
                self._known[id(parameter)] = weakref.ref(parameter), places
            places.append((index, name))

    def ties(self) -> tuple[Tie, ...]:
        """The parameters of several layers, of those that were added."""
        return tuple(Tie(tuple(found)) for found in self._places if len(found) > 1)


def find_ties(layers: Iterable[nn.Module]) -> tuple[Tie, ...]:
    """The parameters that several of a model's layers share."""
    finder = TieFinder()
    for index, layer in enumerate(layers):
        finder.add(index, layer)
    return finder.ties()


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


def untie_stages(
    stages: dict[int, dict[int, nn.Module]], tied: Mapping[str, nn.Parameter]
) -> dict[str, tuple[nn.Parameter, ...]]:
    """Give each stage tied parameters of its own, by copying its layers.

    Args:
        stages: of a rank, their layers by index; copies replace those of the later stages.
        tied: the shared parameters, by name.

    Returns:
        By name the parameter of each stage that has it.

    Raises:
        SynthError: a layer cannot be copied.
    """
    found: dict[str, tuple[nn.Parameter, ...]] = {}
    seen: set[nn.Parameter] = set()
    for number, layers in stages.items():
        before = _parameters(layers)
        if not seen.isdisjoint(before):
            layers = stages[number] = _copied(layers)
        own = dict(zip(before, _parameters(layers), strict=True))
        for name, parameter in tied.items():
            if parameter in own:
                found[name] = (*found.get(name, ()), own[parameter])
        seen.update(before)
    return found


def _parameters(layers: Mapping[int, nn.Module]) -> list[nn.Parameter]:
    return [parameter for layer in layers.values() for parameter in layer.parameters()]


def _copied(layers: dict[int, nn.Module]) -> dict[int, nn.Module]:
    try:
        return copy.deepcopy(layers)
    except Exception as error:
        raise SynthError(
            f"layers {', '.join(map(str, layers))} share parameters with an earlier stage, of "
            f"which they need a copy for weight passing, and cannot be copied: {error}"
        ) from error
