"""Gloo groups that belong to one pipeline, so that it can abort them when a rank has failed.

A rank that failed may live on: its process caught the error, or cannot end while a thread of gloo's
is in a collective with ranks that wait for it. It announces its failure by closing its connections.
Ranks that wait for it then fail and do the same, until all have ended.

The groups are made without `torch.distributed.new_group`, whose names for groups that not all
processes make (torch 2.13) count the groups that a process is in. Ranks that are in different
numbers of groups would wait for each other under different names.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import BroadcastOptions, ProcessGroupGloo

from synth.errors import RunFailure

from ..objects import packed, unpacked
from ..rendezvous import Rendezvous

# Between the tags that channels use: nothing is ever sent under it.
UNUSED_TAG = 2**20
_SOON = timedelta(milliseconds=1)
# Dtypes that gloo's collectives support; others, such as int16 and float8, are sent as bytes.
_KNOWN = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
}


class PrivateGroups:
    """This rank's groups with others, by their ranks."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        """Prepare to make groups of ranks that meet at the rendezvous before each."""
        self.rendezvous = rendezvous
        self._rank = rendezvous.rank
        self._made: dict[tuple[tuple[int, ...], str], ProcessGroupGloo] = {}
        self._others: list[Callable[[], None]] = []

    def among(self, ranks: Iterable[int], purpose: str = "") -> ProcessGroupGloo | None:
        """Return the group of some ranks, which all of them ask for.

        Each purpose has a group of its own. A rank that is not among the ranks gets None.

        Raises:
            RunFailure: a rank of the pipeline has failed, or did not ask in time.
        """
        named = tuple(ranks)
        if self._rank not in named:
            return None
        if (named, purpose) not in self._made:
            name = f"{'-'.join(map(str, named))}-{purpose}"
            self.rendezvous.meet(f"group-{name}", named)
            store = PrefixStore(name, self.rendezvous.store)
            self._made[named, purpose] = self._connected(store, named)
        return self._made[named, purpose]

    def _connected(self, store: Store, ranks: tuple[int, ...]) -> ProcessGroupGloo:
        timeout = timedelta(seconds=self.rendezvous.timeout_s)
        try:
            return ProcessGroupGloo(store, ranks.index(self._rank), len(ranks), timeout)
        except RuntimeError as error:  # a rank that was connected already has failed since
            cause = self.rendezvous.cause_of(error) or str(error)
            raise RunFailure(f"{self.rendezvous.name} cannot connect: {cause}") from error

    def on_abort(self, abort: Callable[[], None]) -> None:
        """Register a function that closes other connections before these groups."""
        self._others.append(abort)

    def abort(self) -> None:
        """Close all connections, which ends waits in these groups here and at the other end.

        Gloo has no call for that. But when a receive times out, gloo closes all connections of its
        group (gloo/transport/tcp/unbound_buffer.cc). A receive from a rank that is gone fails at
        once.
        """
        for abort in self._others:
            abort()
        for (ranks, _), group in self._made.items():
            for peer in range(len(ranks)):
                if ranks[peer] != self._rank:
                    _run_out_of_time(group, peer)


def _run_out_of_time(group: Any, peer: int) -> None:
    # Gloo has connections for each network interface, and spreads consecutive tags over them.
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "").count(",") + 1
    for tag in range(UNUSED_TAG, UNUSED_TAG + interfaces):
        with suppress(RuntimeError):
            group.recv([torch.empty(1)], peer, tag).wait(_SOON)


def gather(group: Any, value: object) -> list[Any]:
    """Return every rank's object, in rank order, on all ranks."""
    mine = packed(value)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    group.allgather([lengths], [torch.tensor([len(mine)])]).wait()
    most = max(int(length) for length in lengths)
    rows = [torch.empty(most, dtype=torch.uint8) for _ in lengths]
    group.allgather([rows], [torch.nn.functional.pad(mine, (0, most - len(mine)))]).wait()
    return [unpacked(row[: int(n)]) for row, n in zip(rows, lengths, strict=True)]


def share(group: Any, value: object, source: int) -> Any:
    """Return one rank's object on all ranks."""
    told = packed(value if group.rank() == source else None)
    length = torch.tensor([len(told)])
    broadcast(group, length, source)
    if group.rank() != source:
        told = torch.empty(int(length), dtype=torch.uint8)
    broadcast(group, told, source)
    return unpacked(told)


def broadcast(group: Any, tensor: Tensor, source: int) -> None:
    """Copy one rank's tensor to all; `source` is its rank in the group."""
    if tensor.dtype not in _KNOWN:
        raw = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
        broadcast(group, raw, source)
        tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))
        return
    options = BroadcastOptions()
    options.rootRank = source
    group.broadcast([tensor], options).wait()
