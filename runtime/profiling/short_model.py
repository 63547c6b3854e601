"""A short model: a few layers of each kind, which run from the inputs to the loss."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from synth.errors import SynthError
from synth.profile.layer_profile import Layer

from ..execution.gradients.all_reduce import local_part
from ..execution.transport.rank_group import without_warnings_of_trees
from ..models.layered_stage import LayerCall
from .layer_walk import VisitedLayer
from .sample import Sample

# Two equal layers show what the boundary between them costs.
_MOST_OF_A_KIND = 2

# The part of the host's free memory that layers may take until the others were measured.
_KEPT_SHARE = 4


@dataclass(frozen=True)
class ShortLayer:
    """A layer of a short model: its index in the model, its entry in the profile, how it is called.

    Of an equal layer that is not the first of its kind, `call` is the first one's.
    """

    index: int
    entry: Layer
    call: LayerCall
    can_be_left_out: bool

    @property
    def is_first(self) -> bool:
        """True if it is the layer of its kind that was measured."""
        return self.entry.name == self.entry.profile


class ShortModel:
    """Collects the first layers of each kind during a walk; on the host until they are run.

    A layer may be left out if the next one can take its input. A layer that a function has made for
    the walk alone is kept only if it takes a fourth of the host's free memory at most, with those
    before it.

    Attributes:
        layers: the layers, in the order of the model.
        missing: the name of a layer that could not be kept and is needed; None: there is none.
    """

    def __init__(self, free_bytes: Callable[[], int | None]) -> None:
        """Collect nothing yet.

        Args:
            free_bytes: of the host; None: not known.
        """
        self.layers: list[ShortLayer] = []
        self.missing: str | None = None
        self._free_bytes = free_bytes
        self._counts: Counter[str] = Counter()
        self._first: dict[str, LayerCall] = {}
        self._kept_bytes = 0

    def add(self, index: int, visited: VisitedLayer, given: LayerCall) -> None:
        """Look at the next layer of the walk, after it was measured.

        Args:
            given: the layer as the source has it; a measured one that is another was made for the
                walk.
        """
        kind, sample = visited.same_as, visited.sample
        self._counts[kind] += 1
        if self._counts[kind] > _MOST_OF_A_KIND and visited.can_be_left_out:
            return
        if sample is not None and sample.call is not None and self._keeps(sample, given):
            self._first[kind] = sample.call
        if kind in self._first:
            call = self._first[kind]
            entry = Layer(name=visited.name, profile=kind)
            self.layers.append(ShortLayer(index, entry, call, visited.can_be_left_out))
        elif not visited.can_be_left_out:
            self.missing = self.missing or visited.name

    def _keeps(self, sample: Sample, given: LayerCall) -> bool:
        if sample.call is given:
            return True
        kept_bytes = self._kept_bytes + module_bytes(sample.layer)
        free_bytes = self._free_bytes()
        if free_bytes is not None and kept_bytes > free_bytes // _KEPT_SHARE:
            return False
        sample.layer.to("cpu")
        self._kept_bytes = kept_bytes
        return True


def fitting(
    layers: Sequence[ShortLayer],
    fits: Callable[[Sequence[ShortLayer]], bool],
    size: Callable[[str], int],
) -> list[ShortLayer]:
    """Leave layers out until the others fit: repeated ones first, then the largest.

    Args:
        size: of a layer by its profile's name.

    Returns:
        Those that fit; none if too many are needed.
    """
    chosen = list(layers)
    while chosen and not fits(chosen):
        candidates = [layer for layer in chosen if layer.can_be_left_out]
        if not candidates:
            return []
        chosen.remove(max(candidates, key=lambda x: (not x.is_first, size(x.entry.profile))))
    return chosen


def calls_of_own(layers: Sequence[ShortLayer]) -> list[LayerCall]:
    """Return a call of a module of its own for each layer; equal ones get copies.

    Raises:
        SynthError: a layer cannot be copied.
    """
    with without_warnings_of_trees():
        return [
            layer.call
            if layer.is_first
            else replace(layer.call, index=layer.index, module=_copied(layer))
            for layer in layers
        ]


def _copied(layer: ShortLayer) -> nn.Module:
    try:
        return copy.deepcopy(layer.call.module)
    except Exception as error:  # of the user's code, of any class
        raise SynthError(f"layer {layer.entry.profile!r} cannot be copied: {error}") from error


def module_bytes(module: nn.Module) -> int:
    """Return the bytes of this process's parameters and buffers of a module."""
    tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
    return sum(t.numel() * t.element_size() for t in map(local_part, tensors))
