"""Checkpoints of format version 1, which `torch.distributed.checkpoint` wrote, without checksums.

Their `.metadata` is a pickle. It is read by an unpickler that admits only torch's own descriptions
of tensors. The tensors are in archives that torch reads with `weights_only`.
"""

import io
import pickle
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load

from synth.units import shown

from .errors import Damaged
from .regular_files import check_regular, read_regular

_CHECKPOINT = "torch.distributed.checkpoint"
_ADMITTED = {
    (f"{_CHECKPOINT}.metadata", "Metadata"),
    (f"{_CHECKPOINT}.metadata", "MetadataIndex"),
    (f"{_CHECKPOINT}.metadata", "TensorStorageMetadata"),
    (f"{_CHECKPOINT}.metadata", "TensorProperties"),
    (f"{_CHECKPOINT}.metadata", "ChunkStorageMetadata"),
    (f"{_CHECKPOINT}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{_CHECKPOINT}.metadata", "StorageMeta"),
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


_VALUES = {(f"{_CHECKPOINT}.metadata", "BytesStorageMetadata")}


def _member(kinds: object, name: object) -> Enum:
    """Return a member of an enumeration, which Python 3.11.0 to 3.11.3 pickle as `getattr` of it.

    Raises:
        UnpicklingError: it is something else that `getattr` would give.
    """
    if not (isinstance(kinds, type) and issubclass(kinds, Enum)) or name not in kinds.__members__:
        raise pickle.UnpicklingError("it names builtins.getattr of what is no enumeration")
    return kinds.__members__[str(name)]


class _Unpickler(pickle.Unpickler):
    """Admits values that are bytes, which torch would unpickle, only where none of them is read."""

    def __init__(self, content: io.BytesIO, with_values: bool) -> None:
        super().__init__(content)
        self._admitted = _ADMITTED | (_VALUES if with_values else set())

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if (module, name) in self._admitted:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


_DATA_FILE = re.compile(r"__[0-9]+_[0-9]+\.distcp")


class RestrictedReader(FileSystemReader):
    """Reads tensors, whose descriptions are admitted; `with_values` as in `read_metadata`."""

    def __init__(self, path: Path, *, with_values: bool = False) -> None:
        super().__init__(path)
        self._with_values = with_values

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read as the base class does, but with the restricted unpickler."""
        found = read_metadata(Path(self.path), with_values=self._with_values)
        found.storage_meta = StorageMeta(load_id=self.load_id)
        return found


def read_metadata(path: Path, *, with_values: bool = False) -> Metadata:
    """The descriptions of a checkpoint's tensors.

    With `with_values` there may be values that are no tensors; whoever loads asks for none of them.

    Raises:
        Damaged: they are not there, or are something else.
    """
    content = io.BytesIO(read_regular(path / ".metadata"))
    try:
        found = _Unpickler(content, with_values).load()
        names = {str(info.relative_path) for info in found.storage_data.values()}
    except Exception as error:  # a damaged pickle can raise anything
        raise Damaged(f".metadata is damaged: {error}") from None
    if not isinstance(found, Metadata):
        raise Damaged(".metadata is damaged: it describes no tensors")
    for name in names:
        if not _DATA_FILE.fullmatch(name):
            raise Damaged(f".metadata is damaged: it names the file {shown(name)}")
        check_regular(path / name)
    return found


def load_version_1(path: Path, targets: Mapping[str, Tensor], group: Any) -> None:
    """Load into the targets; all ranks at the same time.

    Raises:
        Damaged: that is not possible.
    """
    try:
        load(dict(targets), storage_reader=RestrictedReader(path), process_group=group)
    except CheckpointException as error:
        rank, (inner, _) = min(error.failures.items())
        reason = str(getattr(inner, "strerror", None) or inner).strip().split("\n", 1)[0]
        raise Damaged(f"rank {rank}: {reason}") from None
