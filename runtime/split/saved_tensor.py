"""Tensors of F that a hook on a node needs, saved as autograd saves those of its nodes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class SavedTensor:
    """A tensor between F and B: packed by the hooks in force, or held and checked for changes.

    The hooks are those of checkpointing, which recomputes the tensor in B, or others on saved
    tensors.
    """

    __slots__ = ("_packed", "_unpack", "_version")

    def __init__(self, tensor: Tensor) -> None:
        hooks = saving_hooks()
        self._version = tensor._version
        self._packed: Any = tensor.detach()
        self._unpack: Callable[[Any], Tensor] | None = None
        if hooks is not None:
            pack, self._unpack = hooks
            self._packed = pack(self._packed)

    @property
    def is_packed(self) -> bool:
        """True if hooks hold it."""
        return self._unpack is not None

    def unpack(self) -> Tensor:
        """The tensor, detached.

        Raises:
            RuntimeError: it was changed in place. Tensors packed by hooks are not checked, as in
                autograd.
        """
        if self._unpack is not None:
            return self._unpack(self._packed).detach()
        kept: Tensor = self._packed
        if kept._version != self._version:
            raise RuntimeError(
                f"the input {tuple(kept.shape)} of a layer, needed for its weight gradient, "
                "has been modified by an inplace operation since; change a copy of it instead"
            )
        return kept


def saving_hooks() -> Hooks | None:
    """The hooks that pack and unpack the tensors that autograd saves; None if there are none."""
    hooks: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks
