"""Copies the parts that W needs of tensors that only W still holds, so that the rest is freed.

A layer's input or output gradient may be a view of a larger buffer: one half of what another layer
gave (Mamba's gate and its convolution's input), one position of a sequence (the pooler of BERT), a
part of a concatenation's gradient. At the end of B nothing else may need the buffer.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import torch
from torch import Tensor

from .task import WeightTask

# Copying less costs more time than its memory is worth.
_LEAST_BYTES = 1 << 16

# Torch's own count of references to a storage; there is no public one.
_count_holders: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def compact(tasks: Collection[WeightTask]) -> None:
    """Exchange parts for copies where that frees at least as much as the copies take."""
    if _count_holders is None:
        return
    parts = {id(t): t for task in tasks for t in task.held if _is_small_part(t)}
    if not parts:
        return
    # A detached one does not hold what it is a view of.
    own = {key: part.detach() for key, part in parts.items()}
    parts.clear()
    _exchange(tasks, own)
    by_storage: dict[int, list[Tensor]] = defaultdict(list)
    for part in own.values():
        by_storage[part.untyped_storage().data_ptr()].append(part)
    copies: dict[int, Tensor] = {}
    for together in by_storage.values():
        copies |= _copies_of(together)
    _exchange(tasks, copies)


def _exchange(tasks: Collection[WeightTask], others: Mapping[int, Tensor]) -> None:
    for task in tasks:
        task.exchange(others)


def _is_small_part(tensor: Tensor) -> bool:
    """Whether a tensor takes at most half of a large storage.

    Rows of one element are left: they are multiplied as vectors, which a copy is in other bits.
    """
    if type(tensor) is not Tensor or tensor.layout is not torch.strided:
        return False
    if tensor.ndim == 0 or tensor.shape[-1] == 1:
        return False
    whole: int = tensor.untyped_storage().nbytes()
    return whole >= _LEAST_BYTES and 2 * tensor.numel() * tensor.element_size() <= whole


def _copies_of(parts: Sequence[Tensor]) -> dict[int, Tensor]:
    """By id of a part; nothing if somebody else holds their storage, or if too little is freed."""
    assert _count_holders is not None
    storage = parts[0].untyped_storage()
    if _count_holders(storage._cdata) > len(parts) + 1:  # and the handle on it here
        return {}
    places = {_place(part): part for part in parts}
    needed = sum(part.numel() * part.element_size() for part in places.values())
    if 2 * needed > storage.nbytes():
        return {}
    copies = {place: part.clone() for place, part in places.items()}
    return {id(part): copies[_place(part)] for part in parts}


def _place(part: Tensor) -> Hashable:
    return part.storage_offset(), part.dtype, tuple(part.shape), part.stride()
