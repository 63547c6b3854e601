"""Loads the weights of a rank's layers from a folder, by the names of the whole model."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from synth.errors import Mismatch, SynthError

from ..checkpoint.loading import fill
from ..checkpoint.optimizer_state import optimizer_state_of
from ..execution.weights.shared_tensor import SharedParameter
from ..optimize import StageSteps
from .adapter_names import AdapterNames
from .all_ranks import AllRanks
from .folders import WeightsFolder, open_weights
from .held_tensors import HeldTensor, held_tensors, origin_of
from .transformers_names import FileGroup, ModelNames, plain_groups

_MOST_NAMES = 4


def load_weights(
    folder: Path,
    layers: Mapping[str, nn.Module],
    *,
    steps: StageSteps | None = None,
    shared: Mapping[nn.Parameter, SharedParameter] | None = None,
    ranks: AllRanks | None = None,
) -> None:
    """Load parameters and buffers in place; all ranks call this at the same time.

    Numbers are converted to the dtype of what they are loaded into, as `from_pretrained(dtype=…)`
    does; float32 master copies are loaded as they are in the files.

    Args:
        folder: of Hugging Face (safetensors), or a distributed checkpoint of torch; or an adapter
            of PEFT, which leaves the model that it is added to as it is.
        layers: this rank's, by name; see `held_tensors`.
        steps: the optimizer, if it updates copies; None: it updates the parameters.
        shared: the parameters that are parts of flat ones.
        ranks: those that hold the model; None: this process has all of it.

    Raises:
        Mismatch: the folder is of another model; names missing, unexpected and other-shaped ones.
        SynthError: it has no weights, or they cannot be read.
    """
    ranks = ranks or AllRanks()
    state = None if steps is None else optimizer_state_of(steps, shared)
    if state is not None:
        state.finish()
    by_layer = held_tensors(layers, shared, state)
    held = [tensor for of in by_layer.values() for tensor in of]
    ranks.together(lambda: _check_made(held, is_copied=bool(shared) or state is not None))
    source = ranks.together(lambda: open_weights(folder))
    try:
        needed = {tensor.names for tensor in held}
        of_all = {names for of in ranks.gather(needed) for names in of}
        loading = ranks.together(lambda: _Loading(source, layers, of_all))
        held = [tensor for tensor in held if loading.concerns(tensor)]
        ranks.together(lambda: loading.report(held)).check(folder, ranks)
        ranks.together(lambda: loading.read(held)).check(folder, ranks)
        for name, layer in layers.items():
            if made := {tensor.made: tensor.value for tensor in by_layer[name] if tensor.made}:
                layer.load_state_dict(made, strict=False)  # hooks of the layer take them back
    finally:
        source.close()
    if state is not None:
        state.loaded()


def _check_made(held: Collection[HeldTensor], *, is_copied: bool) -> None:
    """Refuse what hooks of a state dict make of parameters that are trained as copies or parts.

    Raises:
        SynthError: there is some.
    """
    made = next((tensor for tensor in held if tensor.made), None)
    if made is not None and is_copied:
        raise SynthError(
            f"{made.name} is made by a hook of a state dict, and the optimizer of its parameter "
            f"has copies or parts: load the weights before it is made, or without such hooks"
        )


@dataclass
class _Report:
    """The differences between a rank's tensors and those in files."""

    needed: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    other_shapes: list[str] = field(default_factory=list)
    other_numbers: list[str] = field(default_factory=list)

    def check(self, folder: Path, ranks: AllRanks) -> None:
        """Compare the reports of all ranks.

        Raises:
            Mismatch: something differs on one of them.
        """
        reports: list[_Report] = ranks.gather(self)
        needed = {name for report in reports for name in report.needed}
        unexpected = [name for report in reports for name in report.unexpected]
        kinds = {
            "missing": [name for report in reports for name in report.missing],
            "unexpected": [name for name in unexpected if name not in needed],
            "of another shape": [text for report in reports for text in report.other_shapes],
            "of other numbers": [text for report in reports for text in report.other_numbers],
        }
        said = [f"{kind}: {_listed(names)}" for kind, names in kinds.items() if names]
        if said:
            raise Mismatch(
                f"the weights in {folder} are of another model than the one to train; "
                f"{'; '.join(said)}; give the folder of this model"
            )


def _listed(names: list[str]) -> str:
    own = list(dict.fromkeys(names))
    more = f" and {len(own) - _MOST_NAMES} more" if len(own) > _MOST_NAMES else ""
    return ", ".join(own[:_MOST_NAMES]) + more


class _Loading:
    """The groups of a folder's tensors, and what this rank needs of them."""

    def __init__(
        self,
        source: WeightsFolder,
        layers: Mapping[str, nn.Module],
        needed: Collection[tuple[str, ...]],
    ) -> None:
        """Take this rank's layers, and the names of each tensor that some rank needs."""
        self._source = source
        source.choose(needed)
        origin = origin_of(layers)
        self._names: ModelNames | None = None
        self._adapter: AdapterNames | None = None
        self._unexpected: list[str] = []
        self._unused: Collection[str] = () if origin is None else origin.names
        if source.is_adapter:
            if origin is None or not origin.adapters:
                raise SynthError(
                    f"{source.path} has an adapter of PEFT, and the model has none: add it before "
                    f"the model is cut (PeftModel.from_pretrained, is_trainable=True)"
                )
            self._adapter = AdapterNames(origin)
            self._adapter.check_config(source.path)
            groups, self._unexpected = self._adapter.groups(source.names())
        elif source.is_of_transformers and origin is not None and origin.adapters:
            raise SynthError(
                f"the model has an adapter of PEFT, and {source.path} has none: load the weights "
                f"below it before it is added (from_pretrained), or give the folder of an adapter"
            )
        elif source.is_of_transformers and origin is not None and origin.config is not None:
            self._names = ModelNames(origin)
            groups, self._unexpected = self._names.groups(source.names())
        else:
            groups = plain_groups(source.names())
        self._by_target = {target: group for group in groups for target in group.targets}

    def concerns(self, tensor: HeldTensor) -> bool:
        """True unless the folder has an adapter alone, and the tensor is none of it."""
        return self._adapter is None or bool(self._adapter.untied(tensor.names))

    def report(self, held: list[HeldTensor]) -> _Report:
        """Compare names, and shapes where these do not change, without reading."""
        report = _Report(unexpected=list(self._unexpected))
        for tensor in held:
            report.needed.update(tensor.names)
            stored = self._stored_name(tensor)
            if stored is None:
                report.missing.append(tensor.name)
                continue
            group = self._by_target[stored]
            if group.converter is None:
                _compare(tensor, self._source.shape(group.sources[0][0]), report)
        if self._names is None and self._adapter is None and held:
            report.unexpected += [name for name in self._by_target if name not in self._unused]
        return report

    def read(self, held: list[HeldTensor]) -> _Report:
        """Read group by group into what the optimizer updates."""
        report = _Report()
        made: dict[str, Tensor] = {}
        for tensor in held:
            stored = self._stored_name(tensor)
            assert stored is not None
            if stored not in made:
                made |= self._made(self._by_target[stored])
            value = made.pop(stored)
            if not _can_convert(value.dtype, tensor.value.dtype):
                report.other_numbers.append(
                    f"{tensor.name} is {_dtype(value)}, needed {_dtype(tensor.value)}"
                )
            elif _compare(tensor, tuple(value.shape), report):
                fill(tensor.updated, value)
        return report

    def _made(self, group: FileGroup) -> dict[str, Tensor]:
        tensors = {name: self._source.read(name) for name, _ in group.sources}
        if self._names is None:
            return {group.targets[0]: tensors[group.sources[0][0]]}
        return group.converted(tensors, self._names)

    def _stored_name(self, tensor: HeldTensor) -> str | None:
        return next((name for name in tensor.names if name in self._by_target), None)


def _can_convert(found: torch.dtype, needed: torch.dtype) -> bool:
    """True if numbers keep their meaning: those of 8 bits and fewer are scaled by other tensors."""
    if found == needed:
        return True
    if not needed.is_floating_point:
        return found.is_complex == needed.is_complex and not found.is_floating_point
    return found.is_floating_point and found.itemsize > 1


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _compare(tensor: HeldTensor, shape: tuple[int, ...], report: _Report) -> bool:
    if tuple(tensor.value.shape) == shape:
        return True
    report.other_shapes.append(f"{tensor.name} is {list(shape)}, needed {list(tensor.value.shape)}")
    return False
