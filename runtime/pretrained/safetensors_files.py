"""Files of safetensors in a folder of Hugging Face, and the index of several."""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from synth.errors import SynthError

from .folders import INDEX, SINGLE

# As in transformers 4; files of this size are written and fetched well.
_MOST_BYTES = 5_000_000_000
# Beside the weights: tokenizer, templates, how to generate and to prepare inputs, licence.
_COPIED = (
    "tokenizer*",
    "special_tokens_map*",
    "vocab*",
    "merges.txt",
    "added_tokens*",
    "chat_template*",
    "generation_config*",
    "*processor_config*",
    "*.model",
    "LICENSE*",
)


@dataclass(frozen=True)
class WrittenFile:
    """A file of a rank, by its first name, and the bytes of its tensors."""

    name: str
    sizes: dict[str, int]


@dataclass
class ShardWriter:
    """Writes a rank's tensors into files of at most a size, one after the other."""

    folder: Path
    rank: int
    most_bytes: int = _MOST_BYTES
    _waiting: dict[str, Tensor] = field(default_factory=dict)
    _written: list[WrittenFile] = field(default_factory=list)

    def add(self, name: str, tensor: Tensor) -> None:
        """Add a tensor in host memory."""
        if self._waiting and self._num_bytes() + _num_bytes(tensor) > self.most_bytes:
            self._write()
        self._waiting[name] = tensor.clone(memory_format=torch.contiguous_format)

    def close(self) -> list[WrittenFile]:
        """Write what is left, and return all files."""
        if self._waiting:
            self._write()
        return self._written

    def _num_bytes(self) -> int:
        return sum(map(_num_bytes, self._waiting.values()))

    def _write(self) -> None:
        """Write what waits.

        Raises:
            SynthError: the disk refuses, or a tensor cannot be stored.
        """
        name = f"rank-{self.rank}-{len(self._written)}.safetensors"
        try:
            save_file(self._waiting, self.folder / name, metadata={"format": "pt"})
        except SafetensorError as error:  # also of the disk
            raise SynthError(f"{self.folder / name} cannot be written: {error}") from None
        _sync(self.folder / name)
        sizes = {key: _num_bytes(tensor) for key, tensor in self._waiting.items()}
        self._written.append(WrittenFile(name, sizes))
        self._waiting = {}


def complete_folder(folder: Path, files: list[WrittenFile], source: Path | None) -> None:
    """Name the files of all ranks, list them, and copy what else the source has."""
    count = len(files)
    places: dict[str, str] = {}
    for number, file in enumerate(files, start=1):
        name = SINGLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        (folder / file.name).rename(folder / name)
        places |= dict.fromkeys(file.sizes, name)
    if count != 1:
        total = sum(size for file in files for size in file.sizes.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        _sync(folder / INDEX)
    if source is not None:
        for path in (p for pattern in _COPIED for p in source.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
