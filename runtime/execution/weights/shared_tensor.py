"""Sharded parameters and moments: several homes hold a part of each."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..gradients.all_reduce import as_real
from ..transport.gloo.private_groups import broadcast
from .flat_layout import FlatPlace


@dataclass(frozen=True)
class SharedParameter:
    """A parameter of which a rank updates a part.

    Attributes:
        part: the flat parameter that it updates, its share of a buffer.
        place: the place of the parameter in the whole buffer.
        group: the homes; None: there is only one.
        index: the index of this rank among them.
    """

    part: nn.Parameter
    place: FlatPlace
    group: Any
    index: int
    num_shares: int

    def within(self, flat: Tensor) -> Tensor:
        """The parameter's elements of a tensor that is laid out as `part`: a `SharedTensor`."""
        spread: Any = SharedTensor(flat, self)
        found: Tensor = spread
        return found


class SharedTensor:
    """A tensor whose elements are spread over the equal shares of a flat buffer.

    It has the interface of a tensor that checkpoints use. Parameters are laid out one after the
    other, so a rank's share may contain all of a parameter, a part of it or nothing.
    """

    def __init__(self, own: Tensor, shared: SharedParameter) -> None:
        """Describe a tensor of the parameter's shape, by this rank's share of the flat buffer."""
        self._own, self._shared = own, shared
        self.shape, self.dtype, self.device = shared.place.shape, own.dtype, own.device
        self.layout, self.is_sparse, self.is_quantized = torch.strided, False, False

    def numel(self) -> int:
        """The number of elements."""
        return self.shape.numel()

    def element_size(self) -> int:
        """The bytes of an element."""
        return self._own.element_size()

    def is_complex(self) -> bool:
        """True if elements are complex."""
        return self._own.is_complex()

    def detach(self) -> Self:
        """Return the tensor itself, which has no gradient."""
        return self

    def to_local(self) -> Tensor:
        """The elements that this rank holds, flat, as a view."""
        begin, end = self._range(self._shared.index)
        first = self._shared.index * len(self._own)
        return self._own[begin - first : end - first]

    @torch.no_grad()
    def full_tensor(self) -> Tensor:
        """All elements, on every home; all homes call this."""
        whole = torch.empty(self.numel(), dtype=self.dtype, device=self.device)
        for root in range(self._shared.num_shares):
            part = self._of(whole, root)
            if not len(part):
                continue
            if root == self._shared.index:
                part.copy_(self.to_local())
            if self._shared.group is not None:
                broadcast(self._shared.group, as_real(part), root)
        return whole.view(self.shape)

    @torch.no_grad()
    def fill(self, whole: Tensor) -> None:
        """Take this rank's elements of a whole tensor, converted to this one's dtype."""
        self.to_local().copy_(self._of(whole.reshape(-1), self._shared.index))

    @torch.no_grad()
    def zero_(self) -> Self:
        """Zero the elements that this rank holds."""
        self.to_local().zero_()
        return self

    def _range(self, root: int) -> tuple[int, int]:
        """The elements of the buffer that are of this tensor and of a home's share."""
        length = len(self._own)
        begin = min(max(self._shared.place.offset, root * length), (root + 1) * length)
        return begin, max(begin, min(self._shared.place.end, (root + 1) * length))

    def _of(self, whole: Tensor, root: int) -> Tensor:
        begin, end = self._range(root)
        if begin == end:
            return whole[:0]
        return whole[begin - self._shared.place.offset : end - self._shared.place.offset]
