"""Point-to-point channels between ranks, one per directed link, on NCCL and gloo.

Every send and receive starts at its place of the lowered program and never blocks there. On NCCL
each directed link has a communicator of its own, connected before the first step, so that a waiting
receive cannot delay a send that is ready. On gloo one group serves all links, and tags tell them
apart. Small messages within a machine use separate sockets (`gloo/eager_sockets.py`). CUDA tensors
are staged through host memory. Moves to the host's memory and back use the rank's host link.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from synth.costs import HOST
from synth.schedule.lowering.lower import Lowered, Transfer

from ..stage.boundary import Tensors
from ..stage.host_link import HostLink, HostMove
from .connection_rounds import connection_rounds
from .gloo.eager_links import EagerLinks, most_posted
from .groups import Group
from .in_process.ranks import InProcessGroup
from .nccl_groups import LINK


class Pending(Protocol):
    """A transfer in flight."""

    def wait(self) -> Tensors:
        """Return the tensors once they may be read (received) or freed (sent).

        Raises:
            RuntimeError: the other rank is gone, or the time-out passed.
        """
        ...


class Transport(Protocol):
    """Starts transfers. Both ends of a transfer pass the same tuple of tensors."""

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending contiguous tensors, which must live until `wait`."""
        ...

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive into buffers."""
        ...


class Channels(Transport, Protocol):
    """The transports of one rank."""

    def abort(self) -> None:
        """Disconnect from all other ranks after a failure.

        Ranks that wait for this one fail, too. Nothing can be sent or received any more.
        """
        ...


def open_channels(
    device: torch.device,
    transfers: Iterable[Transfer],
    timeout_s: float = 300.0,
    group: Group | InProcessGroup | None = None,
    lowered: Lowered | None = None,
) -> Channels:
    """Open the channels for a schedule's transfers; every rank calls this at the same time.

    Args:
        device: the device of this rank's tensors.
        transfers: all transfers of the lowered schedule, the same list on every rank.
        timeout_s: the time limit of a transfer; gloo takes that of `group`, if given.
        group: the pipeline's ranks; None: all processes.
        lowered: the programs that will use the channels; None: unknown.
    """
    group = group or Group.world(timeout_s)
    transfers = list(transfers)
    ends = {(t.source, t.target) for t in transfers}
    links = sorted(link for link in ends if HOST not in link)
    between: Channels
    if isinstance(group, InProcessGroup):
        between = group.channels()
    elif group.backend(device) == "nccl":
        between = NcclChannels(group, links, device, timedelta(seconds=timeout_s))
    else:
        posted = most_posted(transfers, lowered, group.rank)
        between = GlooChannels(group, device, EagerLinks(group, links, posted, timeout_s))
    uses_host = any(HOST in link and group.rank in link for link in ends)
    return WithHost(between, HostLink(device)) if uses_host else between


class WithHost:
    """Channels between ranks, and the link to this rank's host."""

    def __init__(self, between: Channels, host: Transport) -> None:
        self._between = between
        self._host = host

    def reserve(self, moves: Iterable[HostMove]) -> None:
        """Allocate the host memory for the moves of a step."""
        if isinstance(self._host, HostLink):
            self._host.reserve(moves)

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending, to a rank or to the host."""
        return self._transport(transfer).send(tensors, transfer)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Post a receive, from a rank or from the host."""
        return self._transport(transfer).receive(buffers, transfer)

    def abort(self) -> None:
        """Disconnect from the other ranks; the host waits for no rank."""
        self._between.abort()

    def _transport(self, transfer: Transfer) -> Transport:
        return self._host if HOST in (transfer.source, transfer.target) else self._between


class _Plain:
    """A transfer directly from or to the caller's tensors."""

    def __init__(self, works: Sequence[dist.Work], tensors: Tensors) -> None:
        self._works = works
        self._tensors = tensors

    def wait(self) -> Tensors:
        for work in self._works:
            work.wait()
        return self._tensors


class _Unstaging:
    """A receive into host memory, copied to the device's buffers by `wait`."""

    def __init__(self, staged: Pending, buffers: Tensors) -> None:
        self._staged = staged
        self._buffers = buffers

    def wait(self) -> Tensors:
        for buffer, staged in zip(self._buffers, self._staged.wait(), strict=True):
            buffer.copy_(staged)
        return self._buffers


class NcclChannels:
    """One communicator per directed link; waiting orders streams and does not block the host.

    In a link's communicator the source has rank 0 and the target rank 1.
    """

    def __init__(
        self,
        group: Group,
        links: list[tuple[int, int]],
        device: torch.device,
        timeout: timedelta,
    ) -> None:
        self._group = group
        self._links: dict[tuple[int, int], Any] = {}
        self._connect(links, device, timeout)

    def _connect(
        self, links: list[tuple[int, int]], device: torch.device, timeout: timedelta
    ) -> None:
        """Make the communicators of this rank's links, in rounds, and send one byte over each.

        NCCL connects a communicator at its first transfer, for which both ends would otherwise wait
        in the middle of the program.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device=device)
        for each in connection_rounds(links):
            for link in each:
                if self._group.rank in link:
                    self._links[link] = made = self._group.subgroup(link, timeout, LINK)
                    is_source = self._group.rank == link[0]
                    started = made.send([byte], 1, 0) if is_source else made.recv([byte], 0, 0)
                    started.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Enqueue on the link's communicator, behind the compute that made the tensors."""
        link = self._links[transfer.source, transfer.target]
        return _Plain([link.send([t], 1, 0) for t in tensors], tensors)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Enqueue on the link's communicator; later receives of this link queue behind it."""
        link = self._links[transfer.source, transfer.target]
        return _Plain([link.recv([b], 0, 0) for b in buffers], buffers)

    def abort(self) -> None:
        """Abort the communicators, so that this rank can leave.

        NCCL does not tell the other end. A rank that waits on its device only is ended by the
        launcher or by a time-out.
        """
        self._group.abort()


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

    def send(self, tensors: Tensors, transfer: Transfer) -> Pending:
        """Start sending contiguous tensors, through host memory if they are on a device."""
        outgoing = tuple(t.cpu() for t in tensors) if self._staged else tensors
        eager = self._eager.senders.get((transfer.source, transfer.target))
        if eager is not None and _num_bytes(outgoing) <= eager.most:
            return eager.send(outgoing)
        target = transfer.target
        works = [self._ends.send([t], target, self._next_tag(transfer)) for t in outgoing]
        return _Plain(works, outgoing)

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
        return _Plain(works, buffers)

    def abort(self) -> None:
        """Close the sockets, and all connections of the pipeline's gloo groups."""
        self._private.abort()

    def _next_tag(self, transfer: Transfer) -> int:
        link = (transfer.source, transfer.target)
        self._count[link] = (self._count[link] + 1) % 2**20
        return self._count[link]


def _num_bytes(tensors: Tensors) -> int:
    return sum([tensor.nbytes for tensor in tensors])
