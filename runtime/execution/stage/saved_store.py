"""What F keeps of a micro-batch that moves: gathered as autograd saves it, taken away, put back.

    F   autograd saves a handle in place of each tensor, and the handle holds the tensor
    O   handles let go of their tensors; the storages behind them are taken, each once
    B   handles have views of the storages that came back, and nobody else holds these

What is no part of `saved` stays: the stage's input and output, which are values of their own, and
whatever others hold too, such as parameters and tables that a module keeps between forwards.
"""

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from synth.errors import SynthError

from .boundary import Tensors
from .storage_refcount import num_references

_PLAIN = (Tensor, torch.nn.Parameter)


class _View(NamedTuple):
    """Which part of a storage a tensor is, and how it is read."""

    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "_View":
        return cls(tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride())

    def on(self, storage_bytes: Tensor) -> Tensor:
        """The same part of another storage."""
        empty = torch.empty(0, dtype=self.dtype, device=storage_bytes.device)
        storage = storage_bytes.untyped_storage()
        return empty.set_(storage, self.offset, self.size, self.stride)


class _Handle:
    """What autograd holds in place of one saved tensor.

    Autograd does not check tensors that it saved as handles for changes in place, so the handle
    does: until its tensor is taken, as the copy that leaves cannot be changed by anybody.
    """

    __slots__ = ("__weakref__", "_changed", "_tensor", "_version", "_view")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor: Tensor | None = tensor.detach()
        self._version = tensor._version
        self._changed = False
        self._view: _View | None = None

    @property
    def tensor(self) -> Tensor:
        """What was saved.

        Raises:
            SynthError: it is away.
        """
        if self._tensor is None:
            raise SynthError("what a forward saved is needed while it is away from its rank")
        return self._tensor

    def let_go(self) -> None:
        """Hold the tensor no longer."""
        tensor = self.tensor
        self._changed = tensor._version != self._version
        self._view, self._tensor = _View.of(tensor), None

    def take_back(self, storage_bytes: Tensor) -> None:
        """Hold a tensor like it on a storage with the same contents."""
        assert self._view is not None
        self._tensor = self._view.on(storage_bytes)
        self._version = self._tensor._version

    def unpack(self) -> Tensor:
        """What was saved, for the backward.

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
    """One micro-batch's, from its F or R to its B."""

    def __init__(self) -> None:
        self._handles: list[weakref.ref[_Handle]] = []
        self._away: list[list[_Handle]] = []
        self._sizes: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of each storage that is away, in the order of `take`."""
        return self._sizes

    def recording(self) -> saved_tensors_hooks:
        """Within it, what autograd saves is held by handles."""
        return saved_tensors_hooks(self.pack, _unpack)

    def leave(self, others: Iterable[Tensor]) -> None:
        """These are values of their own: what shares a storage with them stays."""
        storages = {_key(tensor) for tensor in others if type(tensor) in _PLAIN}
        held = ((reference, reference()) for reference in self._handles)
        self._handles = [
            reference
            for reference, handle in held
            if handle is not None and _key(handle.tensor) not in storages
        ]

    def take(self) -> Tensors:
        """The bytes of every storage that is held for this micro-batch alone, as a row."""
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
        """What is held in the place of a tensor that F saves."""
        if tensor.is_leaf and tensor.requires_grad:
            return tensor  # a parameter
        if not _can_move(tensor):
            return tensor.detach()
        handle = _Handle(tensor)
        self._handles.append(weakref.ref(handle))
        return handle

    def put_back(self, row: Tensors) -> None:
        """Give a row like that of `take` back to the handles; the caller must let go of it."""
        away, self._away = self._away, []
        for handles, storage_bytes in zip(away, row, strict=True):
            for handle in handles:
                handle.take_back(storage_bytes)


def _unpack(packed: Tensor | _Handle) -> Tensor:
    return packed.unpack() if isinstance(packed, _Handle) else packed


def _key(tensor: Tensor) -> int:
    """Names a storage while it lives."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _can_move(tensor: Tensor) -> bool:
    """Whether a tensor is nothing but a part of its storage, read as it is."""
    plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
    return plain and not tensor.is_conj() and not tensor.is_neg()


def _take(handles: list[_Handle]) -> Tensor | None:
    """The bytes of the storage that handles share, which they let go of; none: others hold it."""
    storage = handles[0].tensor.untyped_storage()
    ours = len(handles) + 1  # and `storage`
    if num_references(storage) > ours or not storage.nbytes():
        return None
    device = handles[0].tensor.device
    storage_bytes = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    for handle in handles:
        handle.let_go()
    return storage_bytes
