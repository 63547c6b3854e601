"""Point-to-point channels between ranks, one per directed link, on NCCL and gloo.

Every send and receive is started at its place of the lowered program and never blocks there. On
NCCL each directed link has a communicator of its own, created eagerly and in one agreed order, so
that a receive that waits cannot hold up a send that is ready. On gloo one group serves all links
and tags keep them apart; CUDA tensors are staged through host memory.
"""

import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from synth.schedule.lower import Transfer


def describe_failure(error: Exception) -> str:
    """What a communication error says, without the library's source paths and advice."""
    text = re.sub(r"\[/[^\]]*\]\s*", "", str(error))
    return text.split(" This is typically caused", 1)[0].split(" This may be", 1)[0].strip(" .")


class Pending(Protocol):
    """A transfer under way."""

    def wait(self) -> torch.Tensor:
        """Return the tensor once it may be read (received) or freed (sent).

        Raises:
            RuntimeError: the other rank is gone, or the time-out passed.
        """
        ...


class Channels(Protocol):
    """Starts transfers; one object per rank."""

    def send(self, tensor: torch.Tensor, transfer: Transfer) -> Pending:
        """Start sending; the tensor must live until `wait`."""
        ...

    def receive(self, buffer: torch.Tensor, transfer: Transfer) -> Pending:
        """Post a receive into a buffer."""
        ...


def open_channels(
    device: torch.device, transfers: Iterable[Transfer], timeout_s: float = 300.0
) -> Channels:
    """Open the channels that a schedule's transfers need; every rank calls this at the same time.

    Args:
        device: where this rank's tensors live.
        transfers: all transfers of the lowered schedule, the same list on every rank.
        timeout_s: after which a transfer counts as failed; gloo takes that of the process group.
    """
    links = sorted({(t.source, t.target) for t in transfers})
    if dist.get_backend() == "nccl":
        return NcclChannels(links, timedelta(seconds=timeout_s))
    return GlooChannels(device)


class _Plain:
    """A transfer whose tensor is the user's own."""

    def __init__(self, work: dist.Work, tensor: torch.Tensor) -> None:
        self._work = work
        self._tensor = tensor

    def wait(self) -> torch.Tensor:
        self._work.wait()
        return self._tensor


class _Unstaging:
    """A receive into host memory, copied to the device's buffer when waited for."""

    def __init__(self, work: dist.Work, staged: torch.Tensor, buffer: torch.Tensor) -> None:
        self._work = work
        self._staged = staged
        self._buffer = buffer

    def wait(self) -> torch.Tensor:
        self._work.wait()
        return self._buffer.copy_(self._staged)


class NcclChannels:
    """One communicator per directed link; waiting orders streams and does not block the host."""

    def __init__(self, links: list[tuple[int, int]], timeout: timedelta) -> None:
        self._groups = {link: dist.new_group(list(link), timeout=timeout) for link in links}

    def send(self, tensor: torch.Tensor, transfer: Transfer) -> Pending:
        """Enqueue on the link's communicator, behind the compute that made the tensor."""
        group = self._groups[transfer.source, transfer.target]
        return _Plain(_started(dist.isend(tensor, transfer.target, group)), tensor)

    def receive(self, buffer: torch.Tensor, transfer: Transfer) -> Pending:
        """Enqueue on the link's communicator; later receives of this link queue behind it."""
        group = self._groups[transfer.source, transfer.target]
        return _Plain(_started(dist.irecv(buffer, transfer.source, group)), buffer)


class GlooChannels:
    """One group and a running tag per link: both ends count transfers in the same (link) order."""

    def __init__(self, device: torch.device) -> None:
        self._staged = device.type != "cpu"
        self._count: Counter[tuple[int, int]] = Counter()

    def send(self, tensor: torch.Tensor, transfer: Transfer) -> Pending:
        """Start sending a contiguous tensor, through host memory if it is on a device."""
        outgoing = tensor.cpu() if self._staged else tensor
        work = dist.isend(outgoing, transfer.target, tag=self._next_tag(transfer))
        return _Plain(_started(work), outgoing)

    def receive(self, buffer: torch.Tensor, transfer: Transfer) -> Pending:
        """Post a receive, into host memory if the buffer is on a device."""
        incoming = torch.empty_like(buffer, device="cpu") if self._staged else buffer
        work = _started(dist.irecv(incoming, transfer.source, tag=self._next_tag(transfer)))
        return _Unstaging(work, incoming, buffer) if self._staged else _Plain(work, buffer)

    def _next_tag(self, transfer: Transfer) -> int:
        link = (transfer.source, transfer.target)
        self._count[link] = (self._count[link] + 1) % 2**20
        return self._count[link]


def _started(work: dist.Work | None) -> dist.Work:
    """Only a rank outside the group gets none, and such a rank has no business here."""
    assert work is not None
    return work
