"""Names and forms of weights in files of transformers, which differ from those in memory.

Mixtures of experts, for example, have one tensor of all experts in memory and one for each of them
in files. transformers describes these changes (`core_model_loading`), and applies them here.
"""

import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synth.errors import SynthError

from ..models.cut import Origin
from ..models.empty import empty_parameters
from .safetensors_files import WrittenFile, complete_folder


@dataclass
class FileGroup:
    """Tensors in files that together become tensors of the model.

    Attributes:
        targets: the names of the model's tensors.
        sources: the names in the files, each with the pattern of the conversion that it is of.
        converter: the conversion; None: the tensor stays as it is.
    """

    targets: tuple[str, ...]
    sources: list[tuple[str, str]] = field(default_factory=list)
    converter: Any = None

    def converted(self, tensors: Mapping[str, Tensor], names: "ModelNames") -> dict[str, Tensor]:
        """Return the tensors of the model, of those in the files by their names."""
        if self.converter is None:
            return {self.targets[0]: tensors[self.sources[0][0]]}
        converter = copy.deepcopy(self.converter)
        for name, pattern in self.sources:
            converter.add_tensor(self.targets[0], name, pattern, tensors[name])
        made = converter.convert(self.targets[0], model=names.model, config=names.model.config)
        return {name: x[0] if isinstance(x, list) else x for name, x in made.items()}


class ModelNames:
    """The names that a model of transformers has in memory and in files."""

    def __init__(self, origin: Origin) -> None:
        """Make the model without values.

        Raises:
            SynthError: its class makes none of its config alone.
        """
        make: Any = origin.kind
        try:
            with empty_parameters():
                self.model = make._from_config(copy.deepcopy(origin.config), dtype=torch.float32)
        except Exception as error:  # of a user's code, of any class
            raise SynthError(
                f"{make.__name__} cannot be made of its config alone, as from_pretrained makes it: "
                f"{type(error).__name__}: {' '.join(str(error).split())}; let its __init__ take "
                f'the config, or use the format "dcp"'
            ) from error
        self._own = self.model.state_dict()
        first: dict[int, str] = {}
        self._tied_to = {
            name: first.setdefault(id(tensor), name)
            for name, tensor in self.model.state_dict(keep_vars=True).items()
        }

    def groups(self, names: Iterable[str]) -> tuple[list[FileGroup], list[str]]:
        """Group the names of tensors in files, and return those that the model does not have.

        Names that the model's class ignores are left out.
        """
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            dot_natural_key,
            rename_source_key,
        )

        changes = get_model_conversion_mapping(self.model)
        renamings = [each for each in changes if isinstance(each, WeightRenaming)]
        converters = [each for each in changes if isinstance(each, WeightConverter)]
        by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
        prefix, own = self.model.base_model_prefix, self._own
        found: dict[str, FileGroup] = {}
        unexpected = []
        for name in sorted(names, key=dot_natural_key):
            target, pattern = rename_source_key(name, renamings, converters, prefix, own)
            if target not in own and name in own:
                target, pattern = name, None
            if target not in own:
                unexpected.append(name)
                continue
            converter = None if pattern is None else by_pattern[pattern]
            targets = (target,) if converter is None else _targets(target, converter)
            group = found.setdefault(target, FileGroup(targets, [], converter))
            group.sources.append((name, pattern or name))
        return list(found.values()), [name for name in unexpected if not self._ignores(name)]

    def others(self, names: Iterable[str], trained: Collection[str]) -> list[str]:
        """Return the names that the class does not have, of modules that were added to it."""
        return [name for name in names if name not in self._tied_to]

    def refusal(self, listed: str) -> str:
        """Say why others are not saved."""
        return (
            f"{type(self.model).__name__} has no {listed}, so from_pretrained would leave them out "
            f"and fill others with random values: merge what was added into the model's own "
            f'weights, or save in the format "dcp"'
        )

    def untied(self, names: Iterable[str]) -> list[str]:
        """Return of a tensor's names the first of each tensor that the class makes of its own."""
        return list({self._tied_to[name]: name for name in reversed(list(names))}.values())[::-1]

    def in_files(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the model as files have them, by their names there."""
        from transformers.core_model_loading import revert_weight_conversion

        found: dict[str, Tensor] = revert_weight_conversion(self.model, dict(tensors))
        return found

    def complete(self, folder: Path, files: list[WrittenFile], source: Path | None) -> None:
        """Name the files of all ranks, and copy what else the source has."""
        complete_folder(folder, files, source)

    def save_config(self, folder: Path, dtypes: Collection[torch.dtype]) -> None:
        """Write the files with which `from_pretrained` makes the model, beside the weights.

        Args:
            folder: where.
            dtypes: of the weights; the narrowest is the model's.
        """
        config = self.model.config
        config.architectures = [type(self.model).__name__]
        narrowest = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
        config.dtype = str(narrowest).removeprefix("torch.")
        config.save_pretrained(folder)
        if self.model.can_generate() and not (folder / "generation_config.json").exists():
            self.model.generation_config.save_pretrained(folder)

    def _ignores(self, name: str) -> bool:
        patterns = self.model._keys_to_ignore_on_load_unexpected or ()
        return any(re.search(pattern, name) for pattern in patterns)


def _targets(first: str, converter: Any) -> tuple[str, ...]:
    """Return the names of what a conversion makes; the name of the first is given."""
    patterns: Sequence[str] = converter.target_patterns
    return tuple(first.replace(patterns[0], pattern) for pattern in patterns)


def plain_groups(names: Iterable[str]) -> list[FileGroup]:
    """Return a group for each tensor of a file that has the model's own names."""
    return [FileGroup((name,), [(name, name)]) for name in names]
