"""The adapters of PEFT in a model, and the files in which PEFT keeps them.

A folder has the adapter's tensors alone, and its config. The model that they are added to stays as
it is, and is loaded from its own folder first.
"""

import copy
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from synth.errors import Mismatch, SynthError

from ..models.cut import Origin
from ..models.empty import empty_parameters
from .folders import ADAPTER
from .safetensors_files import WrittenFile
from .transformers_names import FileGroup, ModelNames

_WRAPPED = "base_model.model."
_CONFIG = "adapter_config.json"

# Fields of a config that do not change what an adapter computes, and those that say where it is, as
# names of tensors do, too. Some `init_lora_weights` change the weights below, such as PiSSA.
_NOT_COMPUTED = re.compile(
    "base_model|config|dropout|inference|layers|mapping|modules|parameters|revision|task|version"
)


class AdapterNames:
    """The names that an adapter's tensors have in the model and in PEFT's file.

    Attributes:
        in_file: by the name in the model.
    """

    def __init__(self, origin: Origin) -> None:
        """Make the model with its adapter without values, and let PEFT say what it would save.

        Raises:
            SynthError: the model has several adapters, PEFT does not make this one again, or would
                save tensors that are in no layer.
        """
        if len(origin.adapters) != 1:
            raise SynthError(
                f"the model has the adapters {', '.join(origin.adapters)}, and a folder of PEFT "
                f'has one: delete the others (delete_adapter), or save in the format "dcp"'
            )
        [(self._adapter, self._config)] = origin.adapters.items()
        base = ModelNames(origin).model
        self.kind = f"{type(base).__name__} with {type(self._config).__name__}"
        try:
            self.in_file = self._names(base)
        except Exception as error:  # of PEFT, of any class
            raise SynthError(
                f"PEFT does not make its adapter of {self.kind} again: {type(error).__name__}: "
                f'{" ".join(str(error).split())}; save in the format "dcp"'
            ) from error
        absent = [stored for name, stored in self.in_file.items() if name not in origin.names]
        if absent:
            raise SynthError(
                f"PEFT keeps {absent[0]} of {self.kind}, which is in none of the model's layers: "
                f"make the adapter without it, as by save_projection=False"
            )

    def _names(self, base: Any) -> dict[str, str]:
        from peft import get_peft_model, get_peft_model_state_dict

        config = copy.deepcopy(self._config)
        for way in ("init_lora_weights", "init_weights"):  # others compute with the weights
            if hasattr(config, way):
                setattr(config, way, True)
        with empty_parameters():
            model = get_peft_model(base, config, adapter_name=self._adapter)
        state = model.state_dict()
        names = {id(tensor): name.removeprefix(_WRAPPED) for name, tensor in state.items()}
        # PEFT finds by itself whether to save the weights of embeddings, too.
        saved = get_peft_model_state_dict(model, state_dict=state, adapter_name=self._adapter)
        return {names[id(tensor)]: name for name, tensor in saved.items()}

    def check_config(self, folder: Path) -> None:
        """Check that the adapter in a folder computes with its tensors what the model's does.

        Raises:
            Mismatch: a field of its config differs, such as `lora_alpha`.
            SynthError: it has none.
        """
        try:
            theirs = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SynthError(f"{folder / _CONFIG} cannot be read: {error}") from None
        ours = json.loads(json.dumps(self._config.to_dict(), default=sorted))
        for name in ours.keys() & theirs.keys():
            if not _NOT_COMPUTED.search(name) and ours[name] != theirs[name]:
                raise Mismatch(
                    f"the adapter in {folder} has {name}={theirs[name]!r}, and the model's has "
                    f"{name}={ours[name]!r}: make the model by PeftModel.from_pretrained(model, "
                    f"{str(folder)!r}, is_trainable=True)"
                )

    def groups(self, names: Iterable[str]) -> tuple[list[FileGroup], list[str]]:
        """Group the names of tensors in files, and return those that the model does not have."""
        own = {stored: name for name, stored in self.in_file.items()}
        found = {name: FileGroup((own[name],), [(name, name)]) for name in names if name in own}
        return list(found.values()), [name for name in names if name not in found]

    def others(self, names: Iterable[str], trained: Collection[str]) -> list[str]:
        """Return the names of trained tensors that are no part of the adapter."""
        return [name for name in names if name in trained and name not in self.in_file]

    def refusal(self, listed: str) -> str:
        """Say why others are not saved."""
        return (
            f"{self.kind} trains {listed} beside its adapter, which PEFT's file would not have: "
            f'name the module in modules_to_save, freeze it, or save in the format "dcp"'
        )

    def untied(self, names: Iterable[str]) -> list[str]:
        """Return those of a tensor's names that are parts of the adapter."""
        return [name for name in names if name in self.in_file]

    def in_files(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the model by their names in PEFT's file."""
        return {self.in_file[name]: tensor for name, tensor in tensors.items()}

    def save_config(self, folder: Path, dtypes: Collection[torch.dtype]) -> None:
        """Write the adapter's config."""
        config = copy.deepcopy(self._config)
        config.inference_mode = True
        config.save_pretrained(str(folder))

    def complete(self, folder: Path, files: list[WrittenFile], source: Path | None) -> None:
        """Put the tensors of all ranks into the one file that PEFT reads."""
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= load_file(folder / file.name)
        save_file(tensors, folder / ADAPTER, metadata={"format": "pt"})
        for file in files:
            (folder / file.name).unlink()
