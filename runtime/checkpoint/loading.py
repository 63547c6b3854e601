"""Loads a checkpoint's tensors into those of this rank, by name, after verifying each."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import torch
from torch import Tensor, nn

from synth.errors import Mismatch, SynthError

from ..execution.gradients.all_reduce import is_sharded
from ..execution.weights.shared_tensor import SharedTensor
from .manifest import Manifest
from .optimizer_state import OptimizerState, SavedState
from .rank_file import RankFile
from .tensor_names import TOGETHER, named_tensors, named_values, optimizer_prefixes


def find_targets(
    layers: Mapping[str, nn.Module],
    optimizer_state: OptimizerState,
    saved: Set[str],
    manifest: Manifest | None = None,
    *,
    step: int,
    ignore_optimizer: bool,
) -> dict[str, Tensor]:
    """Find the tensors to load into.

    Parameters that had taken no step get no state here either.

    Args:
        layers: this rank's layers.
        optimizer_state: the optimizer state of their parameters.
        saved: the names in the checkpoint.
        manifest: of the checkpoint; None: its format has none.
        step: the step of the checkpoint. After a step at least some parameters have state, unless
            the optimizer was one without state.
        ignore_optimizer: True resets the state of parameters for which it does not match.

    Raises:
        Mismatch: the checkpoint has other tensors, or another optimizer made it.
    """
    optimizer_state.finish()
    optimizer_state.allocate()
    prefixes = optimizer_prefixes(layers)
    values = {} if manifest is None else manifest.optimizer_values
    if manifest is not None:
        _adopt(prefixes, optimizer_state, manifest)
    tensors = named_tensors(layers, optimizer_state)
    ours = _state_keys([*tensors, *_value_names(named_values(layers, optimizer_state))], prefixes)
    theirs = _state_keys([*saved, *_value_names(values)], prefixes)
    has_state = any(name.startswith("optimizer.") for name in (*saved, *values))
    fresh = set()
    for prefix, parameter in prefixes.items():
        own, other = ours.get(prefix, set()), theirs.get(prefix, set())
        if own == other:
            continue
        if not ignore_optimizer and (other or (step > 0 and not has_state)):
            raise _other_optimizer(prefix, own, other)
        optimizer_state.forget(parameter)
        fresh.add(prefix)
    targets = {name: t for name, t in tensors.items() if _prefix_of(name, prefixes) not in fresh}
    lacking = next((name for name in targets if name not in saved), None)
    if lacking is not None:
        raise Mismatch(f"the checkpoint has no {lacking}: it is of another model")
    return targets


def load_tensors(path: Path, manifest: Manifest, targets: Mapping[str, Tensor]) -> None:
    """Load into the targets; floating-point tensors are converted to the target's dtype.

    Raises:
        Damaged: a tensor or its file does not match the manifest.
        Mismatch: a shape differs.
    """
    by_file: dict[str, list[str]] = defaultdict(list)
    for name, target in targets.items():
        stored = manifest.tensors[manifest.stored_name(name)]
        _check_fits(name, stored.shape, stored.dtype.startswith("complex"), target)
        by_file[stored.file].append(name)
    for file_name, names in by_file.items():
        with RankFile(path / file_name, manifest.files[file_name]) as file:
            for name in names:
                stored_name = manifest.stored_name(name)
                fill(targets[name], file.read(stored_name, manifest.tensors[stored_name]))


def _adopt(
    prefixes: Mapping[str, nn.Parameter], optimizer_state: OptimizerState, manifest: Manifest
) -> None:
    """Give the optimizer's state the form of the saved one, where that is not tensors alone."""
    joint = optimizer_state.is_joint
    tensors: defaultdict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]] = defaultdict(dict)
    for name in manifest.names:
        prefix = _prefix_of(name, prefixes)
        if prefix is not None:
            stored = manifest.tensors[manifest.stored_name(name)]
            shape_dtype = stored.shape, getattr(torch, stored.dtype)
            tensors[prefix][name.removeprefix(f"{prefix}.")] = shape_dtype
    for prefix, parameter in prefixes.items():
        values = dict(manifest.optimizer_values.get(prefix, {}))
        together = values.pop(TOGETHER, None)
        if (joint and together == sorted(prefixes)) or (not joint and together is None):
            optimizer_state.adopt(parameter, SavedState(tensors[prefix], values))


def _value_names(values: Mapping[str, Mapping[str, object]]) -> list[str]:
    return [f"{prefix}.{key}" for prefix, keys in values.items() for key in keys]


def _prefix_of(name: str, prefixes: Set[str] | Mapping[str, object]) -> str | None:
    """The prefix of a name of optimizer state; None: it is none of these."""
    if not name.startswith("optimizer."):
        return None
    while name and name not in prefixes:
        name = name.rpartition(".")[0]
    return name or None


def _state_keys(names: Iterable[str], prefixes: Mapping[str, nn.Parameter]) -> dict[str, set[str]]:
    """Group the names of optimizer state by the parameter that it is of."""
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        prefix = _prefix_of(name, prefixes)
        if prefix is not None:
            keys[prefix].add(name.removeprefix(f"{prefix}.").split(".")[0])
    return keys


def _other_optimizer(prefix: str, ours: set[str], theirs: set[str]) -> Mismatch:
    if TOGETHER in theirs:
        return Mismatch(
            f"the checkpoint's optimizer keeps its state of all parameters of a rank together, at "
            f"{prefix.removeprefix('optimizer.')}, as LBFGS does; this run has another optimizer, "
            f"or other layers on this rank: give it the same ones, or --ignore-optimizer resets "
            f"such state"
        )
    own, other = (", ".join(sorted(keys)) or "nothing" for keys in (ours, theirs))
    return Mismatch(
        f"of {prefix.removeprefix('optimizer.')} the checkpoint's optimizer keeps {other}, this "
        f"run's {own}; train with the same optimizer, or --ignore-optimizer resets such state"
    )


def _check_fits(name: str, shape: tuple[int, ...], is_complex: bool, target: Tensor) -> None:
    if tuple(target.shape) != shape:
        raise Mismatch(
            f"{name} is of shape {list(shape)} in the checkpoint, of {list(target.shape)} here: "
            f"it is of another model"
        )
    if target.is_complex() != is_complex:
        raise Mismatch(
            f"{name} is {'complex' if is_complex else 'real'} in the checkpoint and not here: "
            f"it is of another model"
        )


@torch.no_grad()
def fill(target: Tensor, loaded: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded, in the target's dtype.

    Raises:
        SynthError: the target has no memory.
    """
    shared: object = target
    if isinstance(shared, SharedTensor):
        shared.fill(loaded.to(target.device))
        return
    if target.is_meta:
        raise SynthError(
            f"a tensor of shape {list(target.shape)} to load into is on the meta device and has no "
            f"memory: give the module to a Pipeline first, or call its to_empty"
        )
    if not is_sharded(target):
        target.copy_(loaded)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    shards = distribute_tensor(
        loaded.to(target.device), target.device_mesh, target.placements, src_data_rank=None
    )
    target.to_local().copy_(shards.to_local())
