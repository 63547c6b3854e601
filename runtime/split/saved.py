"""What a hook on a node needs of F, kept as autograd keeps what its nodes need."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class Saved:
    """A tensor between F and B: packed by the hooks in force, or held and watched for changes.

    Hooks are those of checkpointing, which recomputes the tensor in B, or of whatever else takes
    what autograd saves.
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
        """Whether hooks have it."""
        return self._unpack is not None

    def unpack(self) -> Tensor:
        """The tensor, detached.

        Raises:
            RuntimeError: it was changed in place (of what hooks have, only they can tell, as with
                autograd).
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
    """What packs and unpacks the tensors that autograd saves, if anything does."""
    hooks: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks
