"""Sums of many tensors over a process group, in place; small ones share a bucket."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..transport.gloo.private_groups import broadcast

# Gloo copies the tensors of a bucket into a buffer that plans do not count, and takes buckets of
# the host's tensors only. NCCL copies nothing.
_GLOO_BUCKET_BYTES = 256 * 1024


def start_all_reduce(group: Any, tensors: Iterable[Tensor], *, divisor: int = 1) -> list[dist.Work]:
    """Start adding up tensors over a group; its ranks pass matching tensors in the same order.

    Args:
        tensors: any dtypes and shapes; of sharded ones (DTensor) this rank's shards are added up.
        divisor: each tensor is divided by it first.

    Returns:
        The collectives to wait for.
    """
    real = [as_real(local_part(tensor)) for tensor in tensors]
    if divisor > 1:
        for sparse in (tensor for tensor in real if tensor.is_sparse):
            sparse.div_(divisor)
        if dense := [tensor for tensor in real if not tensor.is_sparse]:
            torch._foreach_div_(dense, divisor)
    return [
        group.allreduce_coalesced(bucket) if bucket[1:] else group.allreduce(bucket)
        for bucket in buckets(real, _most_bytes(group, real))
    ]


def _most_bytes(group: Any, tensors: Sequence[Tensor]) -> float:
    """The bytes of a bucket."""
    if not isinstance(group, dist.ProcessGroupGloo):
        return math.inf
    return _GLOO_BUCKET_BYTES if all(tensor.device.type == "cpu" for tensor in tensors) else 0


def buckets(tensors: Sequence[Tensor], most_bytes: float) -> Iterator[list[Tensor]]:
    """Group neighbours of one dtype, up to `most_bytes`; larger or sparse tensors stay alone."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if tensor.is_sparse:
            yield [tensor]
            continue
        fits = sum(t.nbytes for t in bucket) + tensor.nbytes <= most_bytes
        if bucket and not (fits and tensor.dtype == bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@torch.no_grad()
def broadcast_from_first(group: Any, tensor: Tensor) -> None:
    """Copy the values of the group's first rank into a tensor or a DTensor's shard, in place."""
    broadcast(group, as_real(local_part(tensor.detach())), 0)


def is_sharded(tensor: Tensor) -> bool:
    """True if it is a DTensor; without importing its module, which is large."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """Return the local shard of a DTensor; any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def as_real(tensor: Tensor) -> Tensor:
    """View a complex tensor as real numbers, which collectives can add up."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
