"""Point-to-point channels on gloo: one group serves all links, and tags tell them apart.

Small messages within a machine use separate sockets (`eager_sockets.py`). CUDA tensors are staged
through host memory.
"""

from collections import Counter
from typing import Any

import torch

from synth.schedule.lowering.lower import Transfer

from ...base.boundary import Tensors
from ...base.channels import Pending
from ..direct_transfer import DirectTransfer
from ..groups import Group
from .eager_links import EagerLinks
from .private_groups import UNUSED_TAG


class _Unstaging:
    """A receive into host memory, copied to the device's buffers by `wait`."""

    def __init__(self, staged: Pending, buffers: Tensors) -> None:
        self._staged = staged
        self._buffers = buffers

    def wait(self) -> Tensors:
        for buffer, staged in zip(self._buffers, self._staged.wait(), strict=True):
            buffer.copy_(staged)
        return self._buffers


class GlooChannels:
    """One group and a running tag per link: both ends count tensors in the same (link) order.

    Small messages use the link's socket if there is one; both ends decide by the message's size.
    """

    def __init__(self, group: Group, device: torch.device, eager: EagerLinks) -> None:
        self._private = group.private
        self._ends: Any = group.private.among(range(group.size))
        self._staged = device.type != "cpu"
        self._eager = eager
        self._count: Counter[tuple[int, int]] = Counter()
        self._call = 0

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending contiguous tensors, through host memory if they are on a device."""
        outgoing = tuple(t.cpu() for t in tensors) if self._staged else tensors
        eager = self._eager.senders.get((transfer.source, transfer.target))
        if eager is not None and _num_bytes(outgoing) <= eager.most:
            return eager.send(outgoing)
        target = transfer.target
        works = [self._ends.send([t], target, self._next_tag(transfer)) for t in outgoing]
        return DirectTransfer(works, outgoing)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive, into host memory if the buffers are on a device."""
        if not self._staged:
            return self._receive(buffers, transfer)
        incoming = tuple(torch.empty_like(b, device="cpu") for b in buffers)
        return _Unstaging(self._receive(incoming, transfer), buffers)

    def _receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        eager = self._eager.receivers.get((transfer.source, transfer.target))
        if eager is not None and _num_bytes(buffers) <= eager.most:
            return eager.receive(buffers)
        source = transfer.source
        works = [self._ends.recv([b], source, self._next_tag(transfer)) for b in buffers]
        return DirectTransfer(works, buffers)

    def begin_call(self, kind: int) -> None:
        """Let the next messages meet those of calls of the same kind only; a small number."""
        self._call = kind

    def abort(self) -> None:
        """Close the sockets, and all connections of the pipeline's gloo groups."""
        self._private.abort()

    def _next_tag(self, transfer: Transfer) -> int:
        link = (transfer.source, transfer.target)
        self._count[link] = (self._count[link] + 1) % UNUSED_TAG
        return self._count[link] + self._call * 2 * UNUSED_TAG


def _num_bytes(tensors: Tensors) -> int:
    return sum([tensor.nbytes for tensor in tensors])
