"""Telling the tensors apart that a layer takes and returns: which of them share memory."""

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import NamedTuple, Self

from torch import Tensor

from synth.op_kinds import OpKind
from synth.profile.layer_tensors import (
    CUDA_BLOCK_BYTES,
    LayerTensors,
    MadeMemory,
    ReturnedTensor,
    SharedGradient,
    TakenTensor,
    last_of,
)

from ..execution.base.boundary import Boundary, is_dense
from ..execution.gradients.all_reduce import local_part
from ..execution.stage.stage_output import versions_of


def allocated_bytes(tensor: Tensor) -> int:
    """Return the bytes that the allocator hands out for a tensor's storage."""
    return _rounded(tensor.untyped_storage().nbytes(), tensor)


def _rounded(size: int, tensor: Tensor) -> int:
    return -(-size // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES if tensor.is_cuda else size


class SeenTensor(NamedTuple):
    """Facts of a boundary's tensor that outlive it; `is_dense`: it fills memory without gaps."""

    address: int
    memory_bytes: int
    num_bytes: int
    version: int
    is_dense: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        return cls(
            address_of(tensor),
            allocated_bytes(tensor),
            _rounded(tensor.numel() * tensor.element_size(), tensor),
            versions_of([tensor])[0],
            is_dense(tensor),
        )


def address_of(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; of a sharded one, of the part of this process."""
    return int(local_part(tensor).untyped_storage().data_ptr())


def layer_tensors(
    given: Sequence[SeenTensor],
    versions: Sequence[int],
    *,
    is_first: bool,
    returned: Sequence[SeenTensor],
    unused: Collection[int],
    exit: Boundary,
    until: Mapping[tuple[str, int], OpKind],
) -> LayerTensors:
    """Return what a layer takes and returns, and what of it is the same memory.

    Args:
        given: the tensors before F.
        versions: their numbers of changes after F.
        is_first: True if they are the inputs of the model.
        returned: the tensors that F returned.
        unused: the numbers of taken tensors that get no gradient.
        exit: says whose gradients come back.
        until: by boundary (`x`, `y`, `gradient`) and place, the last op that needs the memory of a
            tensor; else F.
    """
    is_changed = [one.version != after for one, after in zip(given, versions, strict=True)]
    taken, theirs = ([], given) if is_first else (given, [])
    memories = {one.address: number for number, one in enumerate(taken)}
    made: list[MadeMemory] = []
    outputs: list[ReturnedTensor] = []
    gradients = count()
    for number, (one, leaf) in enumerate(zip(returned, exit.leaves, strict=False)):
        if one.address not in memories:
            memories[one.address] = len(taken) + len(made)
            own = until.get(("y", number), OpKind.F)
            made.append(MadeMemory(num_bytes=one.memory_bytes, until=own))
        place = next(gradients) if leaf.differentiable else None
        kept = OpKind.B if place is None else until.get(("gradient", place), OpKind.B)
        outputs.append(
            ReturnedTensor(
                memory=memories[one.address],
                num_bytes=one.num_bytes,
                gradient_bytes=0 if place is None else one.num_bytes,
                gradient_until=last_of([OpKind.B, kept]),
                is_copied=not one.is_dense,
                is_given=any(one.address == other.address for other in theirs),
            )
        )
    inputs = (
        TakenTensor(
            num_bytes=one.num_bytes,
            until=until.get(("x", number), OpKind.F),
            is_changed=is_changed[number],
            is_unused=number in unused,
        )
        for number, one in enumerate(taken)
    )
    return LayerTensors(
        taken=tuple(inputs),
        made=tuple(made),
        returned=tuple(outputs),
        changes_given=bool(theirs and any(is_changed)),
    )


def gradient_excess(entry: Boundary, gradients: Sequence[SeenTensor]) -> dict[int, int]:
    """Return by input the bytes of its gradient's memory beyond all gradients in it.

    The first input of several counts them. Arguments are those of `shared_gradients`.
    """
    first: dict[int, int] = {}
    excess: dict[int, int] = {}
    for place, one in zip(entry.differentiable_places, gradients, strict=True):
        place = first.setdefault(one.address, place)
        excess[place] = excess.get(place, one.memory_bytes) - one.num_bytes
    return {place: num_bytes for place, num_bytes in excess.items() if num_bytes > 0}


def shared_gradients(entry: Boundary, gradients: Sequence[SeenTensor]) -> list[SharedGradient]:
    """Return the gradients of a layer's inputs that are those of inputs before them, too.

    Args:
        gradients: of the differentiable inputs.
    """
    first: dict[int, int] = {}
    left: dict[int, int] = {}  # of each memory, the bytes that no gradient is known to fill
    found = []
    for place, one in zip(entry.differentiable_places, gradients, strict=True):
        earlier = first.setdefault(one.address, place)
        unfilled = left.setdefault(one.address, one.memory_bytes)
        left[one.address] = max(0, unfilled - one.num_bytes)
        if earlier != place:
            shared = max(0, one.num_bytes - unfilled)
            found.append(SharedGradient(tensor=place, earlier=earlier, num_bytes=shared))
    return found
