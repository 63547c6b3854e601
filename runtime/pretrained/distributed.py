"""Distributed checkpoints of torch (DCP), as torchtitan writes them."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import _save_state_dict

from synth.errors import SynthError

from ..checkpoint.errors import Damaged
from ..checkpoint.version_1 import RestrictedReader, read_metadata
from .all_ranks import AllRanks

_OTHERS = ("optimizer.", "lr_scheduler.", "train_state.", "dataloader.")


class DistributedFolder:
    """The tensors of a checkpoint, without those of an optimizer and the like beside a model.

    Those of the model have its names, or begin with one prefix in addition, such as `model.`.
    """

    is_of_transformers = False
    is_adapter = False

    def __init__(self, path: Path) -> None:
        """Read the description of its tensors.

        Raises:
            SynthError: it is damaged.
        """
        self.path = path
        try:
            described = read_metadata(path, with_values=True).state_dict_metadata
        except Damaged as error:
            raise SynthError(f"{path}: {error}") from None
        self._tensors = {n: t for n, t in described.items() if isinstance(t, TensorStorageMetadata)}
        own = (name for name in self._tensors if not name.startswith(_OTHERS))
        self._stored = {name: name for name in own}

    def names(self) -> list[str]:
        return list(self._stored)

    def choose(self, needed: Collection[tuple[str, ...]]) -> None:
        """Take the tensors below the prefix under which most of the needed ones are."""
        tensors = {name: names for names in needed for name in names}
        found: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for name in self._stored.values():
            for start in (0, *(match.end() for match in re.finditer(r"\.", name))):
                if name[start:] in tensors:
                    found[name[:start]].add(tensors[name[start:]])
        if found:
            prefix = min(found, key=lambda each: (-len(found[each]), len(each), each))
            own = (name for name in self._stored.values() if name.startswith(prefix))
            self._stored = {name.removeprefix(prefix): name for name in own}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[self._stored[name]].size)

    def read(self, name: str) -> Tensor:
        stored = self._stored[name]
        kind = self._tensors[stored]
        found = torch.empty(kind.size, dtype=kind.properties.dtype)
        try:
            # `load` and `save` warn of one process, though it is meant.
            _load_state_dict(
                {stored: found}, RestrictedReader(self.path, with_values=True), no_dist=True
            )
        except CheckpointException as error:
            (inner, _) = min(error.failures.items())[1]
            reason = str(getattr(inner, "strerror", None) or inner).strip().split("\n", 1)[0]
            raise SynthError(f"{self.path}: {name} cannot be read: {reason}") from None
        return found

    def close(self) -> None:
        """Do nothing: no file is open between reads."""


def write_distributed(path: Path, tensors: Mapping[str, Tensor], ranks: AllRanks) -> None:
    """Write a checkpoint; each rank gives its own tensors, in host memory.

    Raises:
        SynthError: the ranks are no processes.
    """
    if ranks.group is None and len(ranks.gather(None)) > 1:
        raise SynthError("a distributed checkpoint needs ranks that are processes, not threads")
    writer = FileSystemWriter(path)
    _save_state_dict(dict(tensors), writer, ranks.group, no_dist=ranks.group is None)
