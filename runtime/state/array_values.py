"""The numbers of arrays outside of torch, as a place whose value can be taken and put back."""

import array
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .comparison import are_different
from .tensor_numbers import FEW_BYTES, Watchfulness, uncopied


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of an array for whose copy there is no room."""

    number: int
    num_bytes: int


class ArrayValues:
    """The numbers of a NumPy array, of a `bytearray`, or of an `array.array`.

    Attributes:
        watchfulness: what may be held of large NumPy arrays, and of tensors.
    """

    def __init__(self, array: Any, watchfulness: Watchfulness, last: Any = None) -> None:
        """Watch an array, whose last known value serves again if it has not changed."""
        self.array = array
        self.watchfulness = watchfulness
        self._last = last

    @property
    def num_bytes(self) -> int:
        """The bytes that a copy takes."""
        return self.array.nbytes if isinstance(self.array, np.ndarray) else len(self.array)

    def take(self) -> Any:
        """See `StatePlace`; a digest if there is no room for a copy."""
        last, self._last = self._last, None
        if last is not None and not self.differs(last):
            return last
        own = self.array
        if not isinstance(own, np.ndarray) or own.dtype.hasobject or own.nbytes <= FEW_BYTES:
            return self.copy()
        if own.nbytes > self.watchfulness.room_bytes:
            return _digest(own)
        copy = self.copy()
        self.watchfulness.hold(copy, own.nbytes)
        return copy

    def copy(self) -> Any:
        """Return a copy, whether there is room for it or not."""
        return self.array.copy("K") if isinstance(self.array, np.ndarray) else self.array[:]

    def put(self, value: Any) -> None:
        if isinstance(value, Digest):
            if self.differs(value):
                raise uncopied("an array")
            return
        self.array[... if isinstance(self.array, np.ndarray) else slice(None)] = value

    def differs(self, value: Any) -> bool:
        own = self.array
        if isinstance(value, Digest):
            return own.nbytes != value.num_bytes or _digest(own) != value
        if isinstance(own, array.array):
            return bool(own.tobytes() != value.tobytes())
        if isinstance(own, bytearray):
            return bool(own != value)
        if own.dtype.hasobject:
            return any(map(are_different, own.flat, value.flat))
        return own.shape != value.shape or not torch.equal(_raw(own), _raw(value))


def _digest(values: Any) -> Digest:
    return Digest(zlib.crc32(_bytes_of(values)), values.nbytes)


def _raw(values: Any) -> torch.Tensor:
    return torch.from_numpy(_bytes_of(values))


def _bytes_of(values: Any) -> Any:
    """The bytes of an array, in the same order for a copy of it; without copying if it is dense."""
    flat = np.asarray(values).ravel(order="K")
    return np.ascontiguousarray(flat).view(np.uint8) if flat.itemsize else np.empty(0, np.uint8)
