"""Objects that ranks tell each other, as pickles that are signed.

Whoever can send a pickle can run code. On one machine the ranks have a key that only they know, so
that what somebody else sends to a port of gloo's is refused before it is unpickled. Under torchrun
there is no key, and the ranks trust whoever can connect, as torch.distributed does.
"""

import hashlib
import hmac
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_object_coll_device

from synth.errors import RunFailure

from ...run_folder import run_key

_SIGNATURE_BYTES = hashlib.sha256().digest_size


def packed(value: object) -> Tensor:
    """Return an object as signed bytes."""
    data = pickle.dumps(value)
    return torch.frombuffer(bytearray(_signature(data) + data), dtype=torch.uint8)


def unpacked(found: Tensor) -> Any:
    """Return the object in signed bytes.

    Raises:
        RunFailure: no rank of this run signed them.
    """
    data = found.numpy().tobytes()
    signature, data = data[:_SIGNATURE_BYTES], data[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(data)):
        raise RunFailure("a message came that no rank of this run has sent; it was not read")
    return pickle.loads(data)


def gather_objects(value: object, group: Any = None) -> list[Any]:
    """Return the object of every rank of a process group, in rank order, on all of them."""
    device, mine = _get_object_coll_device(group), packed(value)
    lengths = [
        torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(lengths, torch.tensor([len(mine)], device=device), group)
    most = max(int(length) for length in lengths)
    rows = [torch.empty(most, dtype=torch.uint8, device=device) for _ in lengths]
    padded = torch.nn.functional.pad(mine, (0, most - len(mine)))
    dist.all_gather(rows, padded.to(device), group)
    return [unpacked(row[: int(n)].cpu()) for row, n in zip(rows, lengths, strict=True)]


def broadcast_object(value: object, source: int, group: Any = None) -> Any:
    """Return the object of one process, by its global rank, on all ranks of a process group."""
    device = _get_object_coll_device(group)
    given = packed(value if dist.get_rank() == source else None)
    length = torch.tensor([len(given)], device=device)
    dist.broadcast(length, source, group)
    if dist.get_rank() != source:
        given = torch.empty(int(length), dtype=torch.uint8)
    given = given.to(device)
    dist.broadcast(given, source, group)
    return unpacked(given.cpu())


def _signature(data: bytes) -> bytes:
    return hmac.digest(run_key(), data, "sha256")
