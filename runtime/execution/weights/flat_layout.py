"""The places of a stage's parameters in flat buffers, each of which is sent as one message."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from ...split import gradient_dtype
from ..base.boundary import Tensors
from ..gradients.unused import begin_sums

# Kernels may add up in another order if data is not aligned as the allocator aligns it.
_ALIGNMENT_BYTES = 64


class FlatPlace(NamedTuple):
    """A parameter's place: the buffer, and its elements there, in row-major order."""

    buffer: int
    offset: int
    shape: torch.Size

    @property
    def end(self) -> int:
        """The offset after its last element."""
        return self.offset + self.shape.numel()


@dataclass(frozen=True)
class FlatLayout:
    """Places of tensors in flat buffers, one buffer for each dtype and for each tensor set apart.

    Each tensor begins at a multiple of 64 bytes, and each buffer divides into equal shares. The
    padding is counted by no plan; there is none if all sizes are multiples of 64 bytes.

    Attributes:
        lengths: the length of each buffer, in elements.
        places: the place of each tensor, in the tensors' order.
    """

    dtypes: tuple[torch.dtype, ...]
    lengths: tuple[int, ...]
    places: tuple[FlatPlace, ...]

    def empty(self, device: torch.device) -> Tensors:
        """Uninitialised buffers."""
        return tuple(
            torch.empty(length, dtype=dtype, device=device)
            for dtype, length in zip(self.dtypes, self.lengths, strict=True)
        )

    def zeros(self, device: torch.device) -> Tensors:
        """Buffers of zeros."""
        return tuple(
            torch.zeros(length, dtype=dtype, device=device)
            for dtype, length in zip(self.dtypes, self.lengths, strict=True)
        )

    def sums(self, device: torch.device) -> Tensors:
        """Buffers with sums of no terms, see `begin_sums`."""
        made = self.empty(device)
        begin_sums(made)
        return made

    def within(self, memory: Callable[[int], Tensor]) -> Tensors:
        """Uninitialised buffers, in bytes that `memory` allocates."""
        return tuple(
            memory(length * dtype.itemsize).view(dtype)
            for length, dtype in zip(self.lengths, self.dtypes, strict=True)
        )

    def views(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """The tensors, as views of their buffers."""
        return [
            buffers[place.buffer][place.offset : place.end].view(place.shape)
            for place in self.places
        ]

    def flat_views(self, buffers: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensors, each as a one-dimensional view of its buffer."""
        return tuple(view.view(-1) for view in self.views(buffers))


class ParameterLayout(NamedTuple):
    """The layouts of a stage's parameters and of the gradients of those that are trained.

    The buffers of gradients match the first buffers of parameters, element for element; the
    buffers of frozen parameters come last.
    """

    weights: FlatLayout
    gradients: FlatLayout

    @classmethod
    def of(
        cls, parameters: Iterable[nn.Parameter], num_shares: int = 1, apart: Collection[int] = ()
    ) -> Self:
        """Lay out parameters.

        Args:
            num_shares: the number of equal shares into which each buffer can be divided.
            apart: the places, in the list, of parameters that have a buffer of their own.
        """
        listed = list(parameters)
        kind_of = [_kind(p, at if at in apart else None) for at, p in enumerate(listed)]
        kinds = list(dict.fromkeys(sorted(kind_of, key=lambda kind: not kind.trained)))
        lengths = [0] * len(kinds)
        places = []
        for parameter, kind in zip(listed, kind_of, strict=True):
            buffer = kinds.index(kind)
            step = _aligned_elements(kind)
            places.append(FlatPlace(buffer, lengths[buffer], parameter.shape))
            lengths[buffer] += -(-parameter.numel() // step) * step
        for buffer, kind in enumerate(kinds):
            step = _aligned_elements(kind) * num_shares
            lengths[buffer] = -(-lengths[buffer] // step) * step
        trained = [place for place, p in zip(places, listed, strict=True) if p.requires_grad]
        num_trained = sum(kind.trained for kind in kinds)
        weights = FlatLayout(tuple(k.dtype for k in kinds), tuple(lengths), tuple(places))
        gradients = FlatLayout(
            tuple(kind.gradient_dtype for kind in kinds[:num_trained]),
            tuple(lengths[:num_trained]),
            tuple(trained),
        )
        return cls(weights, gradients)


class _Kind(NamedTuple):
    """The properties that the parameters in one buffer have in common."""

    trained: bool
    dtype: torch.dtype
    gradient_dtype: torch.dtype
    apart: int | None = None
    """The place of a parameter that shares its buffer with no other."""


def _kind(parameter: nn.Parameter, apart: int | None) -> _Kind:
    return _Kind(parameter.requires_grad, parameter.dtype, gradient_dtype(parameter), apart)


def _aligned_elements(kind: _Kind) -> int:
    return max(1, _ALIGNMENT_BYTES // min(kind.dtype.itemsize, kind.gradient_dtype.itemsize))


def share(buffers: Sequence[Tensor], index: int, num_shares: int) -> Tensors:
    """One of the equal shares of each buffer, as views."""
    parts = []
    for buffer in buffers:
        length = len(buffer) // num_shares
        parts.append(buffer[index * length : (index + 1) * length])
    return tuple(parts)
