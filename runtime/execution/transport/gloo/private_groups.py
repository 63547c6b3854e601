"""Gloo groups of a pipeline's own, so that it may cut their connections when a rank has failed.

A rank that failed may live on: its process caught the error, or cannot end while a thread of gloo's
is in a collective with ranks that wait for it. So it says that it is gone by cutting what connects
it to the others; who waits for it then fails too, and does the same, until all have ended.

They are made beside `torch.distributed.new_group`, whose names for groups that not all processes
make (torch 2.13) count the groups that a process is in: ranks that are in unequally many would wait
for each other under different names.
"""

import os
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import BroadcastOptions, ProcessGroupGloo

from ..rendezvous import Rendezvous

# Beyond those that channels count with: nothing is ever sent under it.
_UNUSED_TAG = 2**20
_SOON = timedelta(milliseconds=1)
# Dtypes that collectives know; others, such as int16 and float8, travel as bytes.
_KNOWN = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
}


class PrivateGroups:
    """This rank's groups with others, by their ranks."""

    rendezvous: Rendezvous
    """Where its ranks wait for each other until a group is made."""

    def __init__(self, store: Store, rank: int, timeout_s: float, noun: str = "rank") -> None:
        """Prepare to make groups.

        Args:
            store: where ranks find each other; for this pipeline alone.
            rank: of the pipeline, as all ranks here.
            timeout_s: after which whoever waits in one of the groups gives up.
            noun: for a rank, in messages.
        """
        self.rendezvous = Rendezvous(store, rank, timeout_s, noun)
        self._store = store
        self._rank = rank
        self._timeout = timedelta(seconds=timeout_s)
        self._made: dict[tuple[tuple[int, ...], str], ProcessGroupGloo] = {}
        self._others: list[Callable[[], None]] = []

    def among(self, ranks: Iterable[int], purpose: str = "") -> ProcessGroupGloo | None:
        """The group of some ranks, which all of them ask for; none: this one is not among them.

        For each purpose there is one of its own.

        Raises:
            RunFailure: a rank of the pipeline has failed, or did not ask in time.
        """
        named = tuple(ranks)
        if self._rank not in named:
            return None
        if (named, purpose) not in self._made:
            name = f"{'-'.join(map(str, named))}-{purpose}"
            self.rendezvous.meet(f"group-{name}", named)
            store = PrefixStore(name, self._store)
            self._made[named, purpose] = ProcessGroupGloo(
                store, named.index(self._rank), len(named), self._timeout
            )
        return self._made[named, purpose]

    def on_abort(self, abort: Callable[[], None]) -> None:
        """Whenever these groups are cut, first cut what else connects this rank to the others."""
        self._others.append(abort)

    def abort(self) -> None:
        """Close all connections: who waits in these groups, here or at the other end, is told.

        Gloo has no call for that. But when a receive runs out of time, it closes all connections of
        its group (gloo/transport/tcp/unbound_buffer.cc); one to a rank that is gone fails at once.
        """
        for abort in self._others:
            abort()
        for (ranks, _), group in self._made.items():
            for peer in range(len(ranks)):
                if ranks[peer] != self._rank:
                    _run_out_of_time(group, peer)


def _run_out_of_time(group: Any, peer: int) -> None:
    # Gloo has connections for each interface that it was given; tags take turns on them.
    interfaces = os.environ.get("GLOO_SOCKET_IFNAME", "").count(",") + 1
    for tag in range(_UNUSED_TAG, _UNUSED_TAG + interfaces):
        with suppress(RuntimeError):
            group.recv([torch.empty(1)], peer, tag).wait(_SOON)


def gather(group: Any, value: object) -> list[Any]:
    """Every rank's object, in rank order, on all."""
    mine = _packed(value)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    group.allgather([lengths], [torch.tensor([len(mine)])]).wait()
    most = max(int(length) for length in lengths)
    rows = [torch.empty(most, dtype=torch.uint8) for _ in lengths]
    group.allgather([rows], [torch.nn.functional.pad(mine, (0, most - len(mine)))]).wait()
    return [_unpacked(row[: int(n)]) for row, n in zip(rows, lengths, strict=True)]


def share(group: Any, value: object, source: int) -> Any:
    """One rank's object, on all."""
    packed = _packed(value if group.rank() == source else None)
    length = torch.tensor([len(packed)])
    broadcast(group, length, source)
    if group.rank() != source:
        packed = torch.empty(int(length), dtype=torch.uint8)
    broadcast(group, packed, source)
    return _unpacked(packed)


def broadcast(group: Any, tensor: Tensor, source: int) -> None:
    """One rank's tensor, on all; the rank is that in the group."""
    if tensor.dtype not in _KNOWN:
        raw = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
        broadcast(group, raw, source)
        tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))
        return
    options = BroadcastOptions()
    options.rootRank = source
    group.broadcast([tensor], options).wait()


def _packed(value: object) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    """Ranks of one pipeline trust each other, as those of torch.distributed do."""
    return pickle.loads(data.numpy().tobytes())
