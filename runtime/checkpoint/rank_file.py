"""A rank's tensors in one safetensors file, with the digest of each.

The safetensors package can read it, but would write all tensors at once. Here each tensor is
hashed, written and freed before the next, and a full disk raises the system's own error.
"""

import hashlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from synth.errors import SynthError

from ..execution.gradients.all_reduce import as_real
from .errors import Damaged
from .manifest import StoredFile, StoredTensor
from .regular_files import check_regular

_BLOCK_BYTES = 1 << 24
_LENGTH_BYTES = 8
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def check_storable(name: str, tensor: Tensor) -> None:
    """Refuse a tensor that a file cannot hold.

    Raises:
        SynthError: a sparse or quantized tensor, or one of a dtype that safetensors has not.
    """
    if tensor.layout != torch.strided or tensor.dtype.to_real() not in _CODES:
        raise SynthError(
            f"{name} is a {tensor.dtype} tensor of layout {tensor.layout}, which a checkpoint "
            f"cannot hold; keep dense numbers, or make it no parameter and no persistent buffer"
        )


def host_copy(tensor: Tensor) -> Tensor:
    """A contiguous copy of a tensor in host memory."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def write_tensors(
    path: Path, tensors: dict[str, Tensor], step: int
) -> tuple[StoredFile, dict[str, StoredTensor]]:
    """Write a file, on disk when this returns; each tensor is dropped once it is written.

    Args:
        tensors: contiguous, in host memory; empty afterwards.
        step: goes into the header, so that no two steps' files are alike.

    Raises:
        OSError: the disk does not let it.
    """
    # Larger elements first: each tensor then begins at a multiple of its own elements' size.
    names = sorted(tensors, key=lambda name: (-as_real(tensors[name]).element_size(), name))
    header = _header({name: as_real(tensors[name]) for name in names}, step)
    stored = {}
    with path.open("wb") as file:
        file.write(header)
        for name in names:
            tensor = tensors.pop(name)
            stored[name] = StoredTensor(
                file=path.name,
                dtype=_dtype_name(tensor),
                shape=tuple(tensor.shape),
                sha256=_write_hashed(file, _bytes_of(tensor)),
            )
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return StoredFile(bytes=size, header_sha256=hashlib.sha256(header).hexdigest()), stored


class RankFile:
    """A file to read from; every byte that it returns has been verified."""

    def __init__(self, path: Path, stored: StoredFile) -> None:
        """Open it.

        Raises:
            Damaged: it is not the file that was written.
        """
        self._path = path
        check_regular(path)
        try:
            _check_header(path, stored)
            self._open: Any = safe_open(path, framework="pt")
        except OSError as error:
            raise Damaged(f"{path.name}: {error.strerror or error}") from None
        except SafetensorError as error:
            raise Damaged(f"{path.name} is damaged: {error}") from None

    def __enter__(self) -> Self:
        self._open.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def read(self, name: str, stored: StoredTensor) -> Tensor:
        """A tensor in host memory.

        Raises:
            Damaged: its bytes were changed since they were written.
        """
        try:
            mapped = self._open.get_tensor(name)
        except SafetensorError as error:
            raise Damaged(f"{self._path.name} is damaged: {error}") from None
        tensor: Tensor = mapped.clone()  # the file may change while it is mapped
        if hashlib.sha256(_bytes_of(tensor)).hexdigest() != stored.sha256:
            raise Damaged(f"{self._path.name} is damaged: the checksum of {name} does not hold")
        if stored.dtype.startswith("complex") and tensor.is_floating_point():
            try:
                tensor = torch.view_as_complex(tensor)
            except RuntimeError as error:
                raise Damaged(f"{self._path.name} is damaged: {name}: {error}") from None
        if (_dtype_name(tensor), tuple(tensor.shape)) != (stored.dtype, stored.shape):
            raise Damaged(f"{self._path.name} is damaged: {name} has another dtype or shape")
        return tensor


def _check_header(path: Path, stored: StoredFile) -> None:
    size = path.stat().st_size
    if size != stored.bytes:
        raise Damaged(f"{path.name} is damaged: it has {size} bytes, not {stored.bytes}")
    with path.open("rb") as file:
        length = file.read(_LENGTH_BYTES)
        header = file.read(min(int.from_bytes(length, "little"), size))
    if hashlib.sha256(length + header).hexdigest() != stored.header_sha256:
        raise Damaged(f"{path.name} is damaged, or of another checkpoint: its header differs")


def _header(tensors: dict[str, Tensor], step: int) -> bytes:
    """The safetensors header: its length, then JSON, padded so that data is aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(step)}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _write_hashed(file: BinaryIO, content: memoryview) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(content), _BLOCK_BYTES):
        block = content[start : start + _BLOCK_BYTES]
        digest.update(block)
        file.write(block)
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    flat: memoryview = as_real(tensor).reshape(-1).view(torch.uint8).numpy().data
    return flat


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
