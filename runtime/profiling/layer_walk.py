"""Walks a model with one micro-batch, with at most one of its layers on the device."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from synth.errors import SynthError
from synth.profile import Workload

from ..models import layer_signature, num_safe_ids
from ..training.layered_stage import LayerCall
from .sample import Sample

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class VisitedLayer:
    """A layer of the walk.

    `same_as` names the first layer identical to it, which may be itself. Only that one has a
    `sample`, whose layer is on the device until the next layer is visited.
    """

    name: str
    same_as: str
    sample: Sample | None


def walk_layers(
    calls: Sequence[LayerCall],
    names: Sequence[str],
    workload: Workload,
    device: torch.device,
    seed: int,
) -> Iterator[VisitedLayer]:
    """Walk the model with one random micro-batch, so that each layer gets a real input.

    A layer is moved to the device to be run, and back. It is not run if it is identical to an
    earlier layer whose output looks like its own input; that input is passed on.

    Args:
        calls: the layers, on the CPU.
        names: of the layers.
        workload: the shape of a micro-batch.
        device: the device to run them on.
        seed: of the micro-batch.

    Raises:
        SynthError: a layer cannot take the output of the previous one, or returns no tensor.
    """
    x, targets = _micro_batch(calls, workload, device, seed)
    first: dict[Hashable, str] = {}
    given: dict[str, Hashable] = {}
    for index, (call, name) in enumerate(zip(calls, names, strict=True)):
        is_first, is_last = index == 0, index == len(calls) - 1
        sample = Sample(call.module, x, targets if is_last else None, is_first, call)
        same_as = first.setdefault(_signature(sample, call), name)
        if same_as != name and given[same_as] == _look(x):
            yield VisitedLayer(name, same_as, None)
            continue
        call.module.to(device)
        x = _output(name, sample, call)
        given[name] = _look(x)
        yield VisitedLayer(name, same_as, sample if same_as == name else None)
        call.module.to(_CPU)


def _micro_batch(
    calls: Sequence[LayerCall], workload: Workload, device: torch.device, seed: int
) -> tuple[Tensor, Tensor]:
    """Random inputs and targets, int64 [micro_batch_size, sequence_length]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (workload.micro_batch_size, workload.sequence_length)
    vocabulary = num_safe_ids(calls[0].module) or 256
    x, targets = (torch.randint(vocabulary, shape, generator=generator) for _ in range(2))
    return x.to(device), targets.to(device)


def _signature(sample: Sample, call: LayerCall) -> Hashable:
    """A key that is equal for layers that cost the same at their places."""
    place = (call.recomputed, sample.is_first, sample.targets is not None)
    return layer_signature(sample.layer), place, _look(sample.x)


def _look(x: Tensor) -> Hashable:
    return x.shape, x.stride(), x.dtype


def _output(name: str, sample: Sample, call: LayerCall) -> Tensor:
    x, targets = sample.x, sample.targets
    try:
        with torch.no_grad():
            y: Any = call((x,) if targets is None else (x, targets))
    except Exception as error:
        raise _misfit(name, x, targets is not None, error) from error
    if not isinstance(y, Tensor):
        raise SynthError(
            f"layer {name!r} returned a {type(y).__name__}; needed: one tensor (from the last "
            f"layer: the scalar loss); join several into one, or make them in each layer"
        )
    if targets is not None and y.numel() != 1:
        raise SynthError(
            f"the last layer {name!r} returned a tensor of shape {tuple(y.shape)}; "
            f"needed: the scalar loss of (x, targets)"
        )
    return y


def _misfit(name: str, x: Tensor, is_last: bool, error: Exception) -> SynthError:
    call = "layer(x, targets)" if is_last else "layer(x)"
    return SynthError(
        f"layer {name!r}, called as {call} with x of shape {tuple(x.shape)} and {x.dtype}, failed: "
        f"{error}"
    )
