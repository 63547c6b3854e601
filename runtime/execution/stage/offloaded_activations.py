"""Saved activations that leave a rank and come back: recorded by hooks, taken, and put back.

    F   autograd saves a handle in place of each tensor, and the handle holds the tensor
    O   handles drop their tensors; the storages behind them are taken, each once
    B   handles get views of the storages that came back, which nothing else holds

The stage's input and output stay, because they are values of their own. So do tensors that are
referenced elsewhere, such as parameters and tables that a module keeps between forwards.
"""

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from synth.errors import SynthError

from ..base.boundary import Tensors
from .storage_refcount import num_references

_PLAIN = (Tensor, torch.nn.Parameter)


class _View(NamedTuple):
    """The part of a storage that a tensor covers, and its layout."""

    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "_View":
        return cls(tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride())

    def on(self, storage_bytes: Tensor) -> Tensor:
        """Return the same part of another storage."""
        empty = torch.empty(0, dtype=self.dtype, device=storage_bytes.device)
        storage = storage_bytes.untyped_storage()
        return empty.set_(storage, self.offset, self.size, self.stride)


class _Handle:
    """Stands in for one tensor that autograd saved.

    Autograd does not check handles for in-place changes, so the handle checks its tensor's version.
    It does so until the tensor is taken; the copy that leaves cannot be changed.
    """

    __slots__ = ("__weakref__", "_changed", "_tensor", "_version", "_view")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor.detach()
        self._version = tensor._version
        self._changed = False
        self._view: _View | None = None

    @property
    def tensor(self) -> Tensor:
        """The saved tensor.

        Raises:
            SynthError: it has been moved away.
        """
        if self._tensor is None:
            raise SynthError("what a forward saved is needed while it is away from its rank")
        return self._tensor

    def let_go(self) -> None:
        """Drop the tensor."""
        tensor = self.tensor
        self._changed = tensor._version != self._version
        self._view, self._tensor = _View.of(tensor), None

    def take_back(self, storage_bytes: Tensor) -> None:
        """Take a view of a storage with the same contents."""
        assert self._view is not None
        self._tensor = self._view.on(storage_bytes)
        self._version = self._tensor._version

    def unpack(self) -> Tensor:
        """Return the saved tensor, for the backward.

        Raises:
            RuntimeError: it was changed since.
        """
        tensor = self.tensor
        if self._changed or tensor._version != self._version:
            raise RuntimeError(
                f"a tensor {list(tensor.shape)} that the backward needs has been modified by an "
                "inplace operation since; change a copy of it instead"
            )
        return tensor


class SavedStore:
    """The saved activations of one micro-batch, from its F or R to its B."""

    def __init__(self) -> None:
        self._handles: list[weakref.ref[_Handle]] = []
        self._away: list[list[_Handle]] = []
        self._sizes: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each storage that is away, in the order of `take`."""
        return self._sizes

    def recording(self) -> saved_tensors_hooks:
        """Replace the tensors that autograd saves within the block by handles."""
        return saved_tensors_hooks(self.pack, _unpack)

    def leave(self, others: Iterable[Tensor]) -> None:
        """Exclude the storages of tensors that are values of their own."""
        storages = {_key(tensor) for tensor in others if type(tensor) in _PLAIN}
        held = ((reference, reference()) for reference in self._handles)
        self._handles = [
            reference
            for reference, handle in held
            if handle is not None and _key(handle.tensor) not in storages
        ]

    def take(self) -> Tensors:
        """Return the bytes of every storage that this micro-batch alone holds."""
        found = (reference() for reference in self._handles)
        self._handles = []
        by_storage: dict[int, list[_Handle]] = {}
        for handle in found:
            if handle is not None:
                by_storage.setdefault(_key(handle.tensor), []).append(handle)
        taken = []
        for handles in by_storage.values():
            storage_bytes = _take(handles)
            if storage_bytes is not None:
                taken.append(storage_bytes)
                self._away.append(handles)
        self._sizes = tuple(row.numel() for row in taken)
        return tuple(taken)

    def pack(self, tensor: Tensor) -> Tensor | _Handle:
        """Return the stand-in for a tensor that F saves."""
        if tensor.is_leaf and tensor.requires_grad:
            return tensor  # a parameter
        if not _can_move(tensor):
            return tensor.detach()
        handle = _Handle(tensor)
        self._handles.append(weakref.ref(handle))
        return handle

    def put_back(self, row: Tensors) -> None:
        """Give storages, as `take` returned them, back to the handles; the caller drops them."""
        away, self._away = self._away, []
        for handles, storage_bytes in zip(away, row, strict=True):
            for handle in handles:
                handle.take_back(storage_bytes)


def _unpack(packed: Tensor | _Handle) -> Tensor:
    return packed.unpack() if isinstance(packed, _Handle) else packed


def _key(tensor: Tensor) -> int:
    """A key of a storage while it lives."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _can_move(tensor: Tensor) -> bool:
    """True if a tensor is a plain strided view of its storage."""
    plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
    return plain and not tensor.is_conj() and not tensor.is_neg()


def _take(handles: list[_Handle]) -> Tensor | None:
    """Return the bytes of the storage that handles share and drop; None: others hold it, too."""
    storage = handles[0].tensor.untyped_storage()
    ours = len(handles) + 1  # and `storage`
    if num_references(storage) > ours or not storage.nbytes():
        return None
    device = handles[0].tensor.device
    storage_bytes = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    for handle in handles:
        handle.let_go()
    return storage_bytes
