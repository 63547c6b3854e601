"""The numbers of tensors that share memory, as a place whose value can be taken and put back."""

import ctypes
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.units import format_bytes

from .places import StatePlace

# What pictures may hold of tensors that are no buffers, in sum: no plan counts it.
MOST_HELD_BYTES = 1 << 26
# What may be held of frozen parameters that have not been found to change, in sum.
MOST_FROZEN_BYTES = 1 << 30
# So little in the host's memory is copied and compared whenever it is met.
FEW_BYTES = 1 << 14

Holder = tuple[StatePlace | None, Tensor]


@dataclass
class Watchfulness:
    """How closely tensors are compared, and what may be held of them.

    Attributes:
        is_exact: True if numbers are compared; else only autograd's counts of in-place changes.
        room_bytes: what may still be held of tensors that are no buffers.
        frozen_room_bytes: the same, of frozen parameters.
    """

    is_exact: bool = True
    room_bytes: int = MOST_HELD_BYTES
    frozen_room_bytes: int = MOST_FROZEN_BYTES

    def hold(self, holder: Any, num_bytes: int, *, is_frozen: bool = False) -> bool:
        """Take room until the holder is gone; False if there is too little."""
        if num_bytes > (self.frozen_room_bytes if is_frozen else self.room_bytes):
            return False
        self._give_back(-num_bytes, is_frozen)
        weakref.finalize(holder, self._give_back, num_bytes, is_frozen).atexit = False
        return True

    def _give_back(self, num_bytes: int, is_frozen: bool) -> None:
        if is_frozen:
            self.frozen_room_bytes += num_bytes
        else:
            self.room_bytes += num_bytes


@dataclass(eq=False)
class Numbers:
    """The numbers of a storage at one time.

    Attributes:
        version: autograd's count of in-place changes.
        copy: the bytes in the host's memory, or a copy on the device; None: there is none.
        digest: of the bytes, if there is no copy of them, or if they are a frozen parameter's.
    """

    version: int
    copy: bytes | Tensor | None = None
    digest: int | None = None


@dataclass(eq=False)
class History:
    """What has been seen of a storage: its state is what a forward has changed.

    Attributes:
        is_state: True once the numbers have been found to change; then copies are on the device.
        is_counted: False if they have changed and autograd has not counted it.
    """

    is_state: bool = False
    is_counted: bool = True


class TensorNumbers:
    """The numbers of the tensors on one storage.

    Attributes:
        watchfulness: how closely they are compared.
        history: what has been seen of the storage.
        is_buffer: True if one of the tensors is a buffer, which is copied whatever its size.
        is_frozen: True if one of them is a frozen parameter, which is copied as a buffer is once it
            has been found to change.
        holders: the tensors, and the places that hold them.
    """

    def __init__(
        self, watchfulness: Watchfulness, known: tuple[History, Numbers] | None = None
    ) -> None:
        """Begin without tensors; `known` is what was found of the same storage before."""
        self.watchfulness = watchfulness
        self.history = History() if known is None else known[0]
        self._last: Numbers | None = None if known is None else known[1]
        self.is_buffer = self.is_frozen = False
        self.holders: list[Holder] = []

    def add(self, holder: Holder, *, is_buffer: bool) -> None:
        """Add a tensor on this storage, and the place that holds it."""
        self.holders.append(holder)
        self.is_buffer |= is_buffer
        self.is_frozen |= isinstance(holder[1], nn.Parameter)

    @property
    def num_bytes(self) -> int:
        """The bytes of the storage."""
        return self._flat().nbytes

    def take(self) -> Numbers:
        """See `StatePlace`; there is no copy if there is no room for it."""
        last, self._last = self._last, None
        if last is not None and not self.differs(last):
            return last
        self.history.is_state |= last is not None
        taken, flat, watchfulness = Numbers(self._version()), self._flat(), self.watchfulness
        is_small = flat.device.type == "cpu" and flat.nbytes <= FEW_BYTES
        if not (self.history.is_state or is_small or watchfulness.is_exact):
            return taken
        is_kept = self.is_buffer or (self.is_frozen and self.history.is_state) or is_small
        if is_kept or watchfulness.hold(taken, flat.nbytes, is_frozen=self.is_frozen):
            taken.copy = flat.clone() if self.history.is_state else _bytes(flat)
        if watchfulness.is_exact and (taken.copy is None or (self.is_frozen and not is_small)):
            taken.digest = digest_of(flat)
        return taken

    def differs(self, value: Numbers) -> bool:
        """See `StatePlace`; state whose changes autograd does not count is taken to differ."""
        is_counted_other = self._version() != value.version
        if self.history.is_state:
            return is_counted_other or not self.history.is_counted
        is_compared = self.watchfulness.is_exact or (value.copy and len(value.copy) <= FEW_BYTES)
        if not is_compared:
            return is_counted_other
        is_other = not self._has(value)
        self.history.is_counted &= is_counted_other or not is_other
        return is_other

    def put(self, value: Numbers) -> None:
        """Write the numbers; see `StatePlace`."""
        if not self._has(value):
            with torch.no_grad():
                self._flat().copy_(self._copied(value))

    @contextmanager
    def stood_in_for(self, value: Numbers, others: Sequence[Holder] = ()) -> Iterator[list[Tensor]]:
        """Put other tensors with these numbers in place of the own ones within the block.

        So autograd sees no in-place change of what it saved. `others` hold tensors on the same
        storage, too.
        """
        copy = self._copied(value)
        holders = [*self.holders, *others]
        stand_ins = {id(tensor): _on(copy, tensor) for _, tensor in holders}
        is_replaceable = all(owner is not None for owner, _ in holders)
        held = [(o, t) for o, t in holders if o is not None and is_replaceable and o.take() is t]
        kept = None if is_replaceable else self._flat().clone()
        for owner, tensor in held:
            owner.put(stand_ins[id(tensor)])
        if kept is not None:
            self._write(copy)
        try:
            yield list(stand_ins.values())
        finally:
            for owner, tensor in held:
                owner.put(tensor)
            if kept is not None:
                self._write(kept)

    def _write(self, numbers: Tensor) -> None:
        with torch.no_grad():
            self._flat().copy_(numbers)

    def _version(self) -> int:
        return max(_count(tensor) for _, tensor in self.holders)

    def _flat(self) -> Tensor:
        return storage_of(self.holders[0][1])

    def _has(self, value: Numbers) -> bool:
        flat = self._flat()
        if value.digest is not None:
            return value.digest == digest_of(flat)
        if isinstance(value.copy, Tensor):
            return flat.shape == value.copy.shape and torch.equal(flat, value.copy)
        if value.copy is not None:
            return _bytes(flat) == value.copy
        return value.version == self._version()

    def _copied(self, value: Numbers) -> Tensor:
        flat = self._flat()
        if value.copy is not None and len(value.copy) != flat.nbytes:
            raise SynthError(
                "a forward resizes a tensor in place, which cannot be undone for a recomputation, "
                "or after a trial: put another tensor in its place"
            )
        if isinstance(value.copy, Tensor):
            return value.copy.clone()
        if value.copy is None:
            raise uncopied(f"a tensor of {format_bytes(flat.nbytes)}")
        if not value.copy:
            return torch.empty_like(flat)
        return torch.frombuffer(bytearray(value.copy), dtype=torch.uint8).to(flat.device)


def uncopied(name: str) -> SynthError:
    """The error that a forward has changed a tensor, and no copy of it is kept."""
    return SynthError(
        f"a forward changes {name} in place, of which no copy is kept for a recomputation, or a "
        f"trial: of tensors that are no buffers at most {format_bytes(MOST_HELD_BYTES)} are kept, "
        f"in sum; register it as a buffer (register_buffer), or do not recompute its layer"
    )


def storage_key(tensor: Tensor) -> int | None:
    """Identify the memory of a tensor; None if its numbers are not watched."""
    local = _local(tensor)
    is_dense = local.layout == torch.strided and not local.is_quantized and not local.is_conj()
    if local.is_meta or not is_dense or type(local) not in (Tensor, nn.Parameter, nn.Buffer):
        return None
    return int(local.untyped_storage()._cdata)


def _local(tensor: Tensor) -> Tensor:
    own: Any = tensor.detach()
    return own.to_local() if hasattr(tensor, "to_local") else tensor


def storage_of(tensor: Tensor) -> Tensor:
    """The bytes of the whole storage of a tensor."""
    local = _local(tensor)
    flat = torch.empty(0, dtype=torch.uint8, device=local.device)
    return flat.set_(local.untyped_storage())


def _on(copy: Tensor, tensor: Tensor) -> Tensor:
    """A tensor like another, on a copy of its storage."""
    local = _local(tensor)
    made = torch.empty(0, dtype=local.dtype, device=local.device)
    made.set_(copy.untyped_storage(), local.storage_offset(), local.shape, local.stride())
    if local is not tensor:
        made = type(tensor).from_local(made, tensor.device_mesh, tensor.placements)  # type: ignore
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=False)
    vars(made).update(vars(tensor))
    return made


def _count(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _bytes(flat: Tensor) -> bytes:
    host = flat.cpu()  # without `numpy`, after which no storage can be resized
    return ctypes.string_at(host.data_ptr(), host.nbytes) if host.nbytes else b""


def num_bytes_of(tensor: Tensor) -> int:
    """The bytes of a tensor's numbers, and of the indices of a sparse one."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return sum(t.nbytes for t in (tensor.crow_indices(), tensor.col_indices(), tensor.values()))
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return sum(t.nbytes for t in (tensor.ccol_indices(), tensor.row_indices(), tensor.values()))
    return tensor.values().nbytes if tensor.is_nested else tensor.numel() * tensor.element_size()


def digest_of(flat: Tensor) -> int:
    """A digest of bytes."""
    if flat.device.type == "cpu":
        number = flat.nbytes
        return zlib.crc32((ctypes.c_char * number).from_address(flat.data_ptr())) if number else 0
    whole = flat[: flat.numel() // 8 * 8].view(torch.int64)
    return int(whole.sum())
