"""Folders with the weights of a model, whose tensors are read by name."""

import json
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from synth.errors import SynthError
from synth.units import shown

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_model.safetensors"  # of PEFT


class WeightsFolder(Protocol):
    """The tensors of a folder, by the names in its files."""

    path: Path
    is_of_transformers: bool
    """True if names may differ from those of the model in memory, as transformers changes them."""
    is_adapter: bool
    """True if it has an adapter of PEFT alone."""

    def names(self) -> list[str]:
        """Return the names of all tensors, without reading any."""
        ...

    def choose(self, needed: Collection[tuple[str, ...]]) -> None:
        """Let the names be those that a model needs, if there is a choice.

        Args:
            needed: the names of each tensor of all ranks, any of which will do.
        """
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, without reading it."""
        ...

    def read(self, name: str) -> Tensor:
        """Return a tensor in host memory."""
        ...

    def close(self) -> None:
        """Close its files."""
        ...


def open_weights(path: Path) -> WeightsFolder:
    """Open a folder of Hugging Face, or a distributed checkpoint of torch.

    Raises:
        SynthError: the folder has neither.
    """
    if (path / ".metadata").exists():
        from .distributed import DistributedFolder  # slow to import

        return DistributedFolder(path)
    if (path / INDEX).exists() or (path / SINGLE).exists():
        return _SafetensorsFolder(path)
    if (path / ADAPTER).exists():
        return _SafetensorsFolder(path, ADAPTER)
    if not path.is_dir():
        raise SynthError(f"there is no folder {path} with weights; give one that exists")
    pickles = sorted(path.glob("*.bin"))
    instead = f", and {pickles[0].name} is a pickle, which is not read" if pickles else ""
    raise SynthError(
        f"{path} has no weights: neither {SINGLE} nor {INDEX} of Hugging Face, nor .metadata of a "
        f"distributed checkpoint{instead}; save it by save_pretrained"
    )


class _SafetensorsFolder:
    """A folder of Hugging Face: one file, or several that an index lists."""

    is_of_transformers = True

    def __init__(self, path: Path, single: str = SINGLE) -> None:
        self.path, self.is_adapter = path, single == ADAPTER
        self._stack, self._open = ExitStack(), dict[str, Any]()
        if (path / single).exists():  # also beside an index, as transformers does
            self._files = dict.fromkeys(self._file(single).keys(), single)
        else:
            self._files = _read_index(path / INDEX)

    def names(self) -> list[str]:
        return list(self._files)

    def choose(self, needed: Collection[tuple[str, ...]]) -> None:
        pass

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._from(name, lambda file: file.get_slice(name).get_shape()))

    def read(self, name: str) -> Tensor:
        found: Tensor = self._from(name, lambda file: file.get_tensor(name))
        return found

    def close(self) -> None:
        self._stack.close()

    def _from(self, name: str, read: Any) -> Any:
        try:
            return read(self._file(self._files[name]))
        except SafetensorError as error:
            where = self.path / self._files[name]
            raise SynthError(f"{where} is damaged: {shown(name)}: {error}") from None

    def _file(self, name: str) -> Any:
        if name not in self._open:
            try:
                file = safe_open(self.path / name, framework="pt")
            except FileNotFoundError:
                raise SynthError(
                    f"{self.path / INDEX} names {shown(name)}, and there is no such file; get it, "
                    f"too"
                ) from None
            except SafetensorError as error:
                raise SynthError(f"{self.path / name} is damaged: {error}") from None
            self._open[name] = self._stack.enter_context(file)
        return self._open[name]


def _read_index(path: Path) -> dict[str, str]:
    """Return the file of each tensor.

    Raises:
        SynthError: it is no index.
    """
    try:
        files = json.loads(path.read_text())["weight_map"]
        if not all(Path(file).name == file for file in files.values()):
            raise ValueError("it names files in other folders")
        return dict(files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SynthError(
            f"{path} is no index of safetensors files: {type(error).__name__}: {error}"
        ) from None
