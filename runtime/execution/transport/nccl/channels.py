"""Point-to-point channels on NCCL: each directed link has a communicator of its own.

All are connected before the first step. A waiting receive cannot delay a send that is ready.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch

from synth.schedule.lowering.lower import Transfer

from ...base.boundary import Tensors
from ...base.channels import Pending
from ..direct_transfer import DirectTransfer
from ..groups import Group
from .communicators import LINK


class NcclChannels:
    """One communicator per directed link; waiting orders streams and does not block the host.

    In a link's communicator the source has rank 0 and the target rank 1.
    """

    def __init__(
        self, group: Group, links: list[tuple[int, int]], device: torch.device, timeout: timedelta
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
        """Enqueue on the link's communicator, after the compute that made the tensors."""
        link = self._links[transfer.source, transfer.target]
        return DirectTransfer([link.send([t], 1, 0) for t in tensors], tensors)

    def receive(self, buffers: Tensors, transfer: Transfer) -> Pending:
        """Enqueue on the link's communicator; later receives of this link wait for this one."""
        link = self._links[transfer.source, transfer.target]
        return DirectTransfer([link.recv([b], 0, 0) for b in buffers], buffers)

    def abort(self) -> None:
        """Abort the communicators, so that this rank can leave.

        NCCL does not tell the other end. A rank that waits on its device only is ended by the
        launcher or by a time-out.
        """
        self._group.abort()


Link = tuple[int, int]


def connection_rounds(links: Iterable[Link]) -> list[list[Link]]:
    """Divide directed links into rounds; the same ones on every rank that has the same links.

    Pairs of ranks are coloured in sorted order, each with the first colour that neither of its ends
    has (a greedy edge colouring: fewer than twice as many colours as a rank has neighbours). A
    colour is one round for each direction.
    """
    wanted = set(links)
    used: dict[int, set[int]] = {}
    colours: dict[int, list[Link]] = {}
    for low, high in sorted({(min(link), max(link)) for link in wanted}):
        taken = used.setdefault(low, set()) | used.setdefault(high, set())
        colour = next(c for c in range(len(taken) + 1) if c not in taken)
        used[low].add(colour)
        used[high].add(colour)
        colours.setdefault(colour, []).append((low, high))
    rounds = []
    for _, pairs in sorted(colours.items()):
        for directed in (pairs, [(high, low) for low, high in pairs]):
            rounds.append([link for link in directed if link in wanted])
    return [each for each in rounds if each]
