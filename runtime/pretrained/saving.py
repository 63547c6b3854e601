"""Saves the weights of a rank's layers to a folder, by the names of the whole model."""

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from synth.errors import SynthError
from synth.run_options.weight_files import WeightFormat, check_new

from ..checkpoint.rank_file import check_storable, host_copy
from ..execution.gradients.all_reduce import is_sharded
from ..execution.weights.shared_tensor import SharedParameter
from ..models.cut import Piece
from .adapter_names import AdapterNames
from .all_ranks import AllRanks
from .held_tensors import HeldTensor, held_tensors, origin_of
from .safetensors_files import ShardWriter, complete_folder
from .transformers_names import ModelNames


def save_weights(
    folder: Path,
    layers: Mapping[str, nn.Module],
    *,
    kind: WeightFormat = WeightFormat.HF,
    shared: Mapping[nn.Parameter, SharedParameter] | None = None,
    ranks: AllRanks | None = None,
    source: Path | None = None,
) -> None:
    """Save parameters and buffers in a new folder; all ranks call this at the same time.

    The folder is complete when this returns, or is not there. If its name alone cannot be given to
    it, it stays as .NAME.partial beside it. All ranks write to the same file
    system. A parameter that several ranks hold is written by the first of them.

    Args:
        layers: this rank's, by name; see `held_tensors`.
        kind: a folder that `from_pretrained` loads, where tied weights stand once, of a model with
            an adapter of PEFT the adapter alone; or a distributed checkpoint of torch, where they
            have all their names.
        shared: the parameters that are parts of flat ones.
        ranks: those that hold the model; None: this process has all of it.
        source: the folder of Hugging Face that training began from, whose tokenizer and the like
            are copied; None: there is none.

    Raises:
        SynthError: the folder has contents, a tensor cannot be stored, or the disk refuses.
    """
    ranks = ranks or AllRanks()
    folder = folder.resolve()
    partial = folder.with_name(f".{folder.name}.partial")
    ranks.together(lambda: _begin(folder, partial, ranks))
    try:
        held = _each_once(held_tensors(layers, shared))
        own = {tensor.name for of in held.values() for tensor in of}
        holders: list[set[str]] = ranks.gather(own)
        earlier = {name for names in holders[: ranks.rank] for name in names}
        if kind == WeightFormat.DCP:
            _write_distributed(partial, held, earlier, ranks)
        else:
            _write_hugging_face(partial, layers, held, earlier, ranks, source)
    except BaseException:
        if ranks.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    ranks.together(lambda: _complete(folder, partial, ranks))


def _each_once(held: Mapping[str, list[HeldTensor]]) -> dict[str, list[HeldTensor]]:
    """Leave out further tensors of the same name: tied ones are equal."""
    first: dict[str, HeldTensor] = {}
    for tensor in (tensor for of in held.values() for tensor in of):
        first.setdefault(tensor.name, tensor)
    return {layer: [t for t in of if first[t.name] is t] for layer, of in held.items()}


def _begin(folder: Path, partial: Path, ranks: AllRanks) -> None:
    if ranks.rank == 0:
        check_new(folder)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)


def _complete(folder: Path, partial: Path, ranks: AllRanks) -> None:
    if ranks.rank != 0:
        return
    try:
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise SynthError(
            f"the weights are complete in {partial}, which cannot be renamed to {folder}: "
            f"{error.strerror or error}; move it yourself"
        ) from None


def _write_distributed(
    path: Path, held: Mapping[str, list[HeldTensor]], earlier: set[str], ranks: AllRanks
) -> None:
    from .distributed import write_distributed  # slow to import

    def copied() -> dict[str, Tensor]:
        failure, tensors = _FirstFailure(), dict[str, Tensor]()
        for of in held.values():
            for tensor, value in _host_copies(of, earlier, failure):
                tensors |= dict.fromkeys(tensor.names, value)
        failure.check()
        return tensors

    tensors = ranks.together(copied)
    ranks.together(lambda: write_distributed(path, tensors, ranks))


def _write_hugging_face(
    path: Path,
    layers: Mapping[str, nn.Module],
    held: Mapping[str, list[HeldTensor]],
    earlier: set[str],
    ranks: AllRanks,
    source: Path | None,
) -> None:
    """Write this rank's files, layer by layer; rank 0 then names them, and adds the config."""
    names = ranks.together(lambda: _names_of(layers))
    _check_names(names, held, _trained(layers), ranks)
    if isinstance(names, AdapterNames):
        held = {name: [t for t in of if names.untied(t.names)] for name, of in held.items()}
    dtypes: set[torch.dtype] = set()

    def write() -> list[Any]:
        writer, failure = ShardWriter(path, ranks.rank), _FirstFailure()
        for of in held.values():
            tensors = {
                name: value
                for tensor, value in _host_copies(of, earlier, failure)
                for name in ((tensor.name,) if names is None else names.untied(tensor.names))
            }
            dtypes.update(x.dtype for x in tensors.values() if x.is_floating_point())
            with failure.kept():
                stored = tensors if names is None else names.in_files(tensors)
                for name, tensor in stored.items():
                    writer.add(name, tensor)
        failure.check()
        return writer.close()

    written = ranks.together(write)
    files = [file for of in ranks.gather(written) for file in of]
    kinds = {dtype for of in ranks.gather(dtypes) for dtype in of}

    def complete() -> None:
        if ranks.rank == 0:
            if names is None:
                complete_folder(path, files, source)
            else:
                names.complete(path, files, source)
                names.save_config(path, kinds)

    ranks.together(complete)


def _names_of(layers: Mapping[str, nn.Module]) -> ModelNames | AdapterNames | None:
    """Return the names of a model of transformers, or of its adapter; None: it is another one."""
    origin = origin_of(layers)
    if origin is None or origin.config is None:
        return None
    return AdapterNames(origin) if origin.adapters else ModelNames(origin)


def _trained(layers: Mapping[str, nn.Module]) -> set[str]:
    """Return all names of the trained parameters of a whole model's pieces."""
    pieces = (layer for layer in layers.values() if isinstance(layer, Piece))
    return {name for piece in pieces for names in piece.trained_names() for name in names}


def _check_names(
    names: ModelNames | AdapterNames | None,
    held: Mapping[str, list[HeldTensor]],
    trained: Collection[str],
    ranks: AllRanks,
) -> None:
    """Refuse tensors that `from_pretrained` would leave out; all ranks call this."""
    own = [name for of in held.values() for tensor in of for name in tensor.names]
    others = [] if names is None else names.others(own, trained)
    found = list(dict.fromkeys(name for of in ranks.gather(others) for name in of))
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    reasons = [] if names is None or not found else [names.refusal(f"{found[0]}{more}")]
    if reasons := [reason for of in ranks.gather(reasons) for reason in of]:
        raise SynthError(reasons[0])


class _FirstFailure:
    """The first failure of this rank, which goes on as others wait for it in collectives."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Enter a context whose failure is kept."""
        try:
            yield
        except Exception as error:  # of the disk or of torch, of any class; `check` raises it
            self.error = self.error or error

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.error is not None:
            raise self.error


def _host_copies(
    held: list[HeldTensor], earlier: set[str], failure: _FirstFailure
) -> Iterator[tuple[HeldTensor, Tensor]]:
    """Yield the tensors that this rank writes; of sharded ones all holders call this.

    After a failure there are no more, and only what the other holders need is done.
    """
    for tensor in held:
        value: Any = tensor.value
        if is_sharded(value):
            value = value.full_tensor()
        if failure.error is not None or tensor.name in earlier:
            continue
        copied = None
        with failure.kept():
            check_storable(tensor.name, tensor.value)
            copied = host_copy(value)
        if copied is not None:
            yield tensor, copied
