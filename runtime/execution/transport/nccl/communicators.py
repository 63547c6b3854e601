"""NCCL communicators of one pipeline: only their members make them, and each may abort them.

They are made without `torch.distributed.new_group` (torch 2.13). Without
`use_local_synchronization` it needs all processes of the world for every group. With it, the name
of a group counts the groups that a process is in (`_hash_ranks_to_str`). Ranks that are in
different numbers of groups would wait for each other under different names: in a chain the ends
have fewer links than the others. And if the world is bound to a device, communicators are split off
that of the world, which again needs all processes. Here a group is named by its ranks and its
purpose, in a store of the pipeline.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from synth.errors import RunFailure, SynthError

from ....processes import ProcessIdentity
from ..rendezvous import Rendezvous

LINK = "link"
"""The purpose of a group of two ranks that is one directed link."""

# Thread blocks of a device that a transfer of one link may occupy, also while it waits.
_LINK_CTAS = 4
_LINK_CTAS_VARIABLE = "SYNTH_LINK_CTAS"

# The longest waits for aborts to end, and at exit for the other ranks.
_LONGEST_ABORT_S = 20.0
_LONGEST_EXIT_S = 30.0

MakeGroup = Callable[[Store, int, Sequence[int], timedelta, str, bool], Any]


def prepare_cuda() -> None:
    """Set what CUDA reads at its start, unless it has started or the user chose otherwise.

    All kernels are loaded then, and streams get the most hardware queues: each link has a stream,
    and of streams that share a queue, one waits for what is queued before it on another.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


class NcclGroups:
    """This rank's communicators with others, by their ranks and purpose.

    They stay until `close`, or until the process ends.
    """

    device: torch.device
    """The device that this rank computes on."""

    def __init__(
        self,
        store: Store,
        ranks: Sequence[int],
        rank: int,
        timeout_s: float,
        *,
        make: MakeGroup | None = None,
        neighbours: Mapping[int, ProcessIdentity] | None = None,
    ) -> None:
        """Prepare to make groups.

        Args:
            store: a store for this pipeline alone, in which ranks find each other.
            ranks: the global ranks of the pipeline's processes.
            rank: the index of this one among them.
            timeout_s: the time limit of waits in a group.
            make: makes a group; None: NCCL's.
            neighbours: the processes of other ranks that can be seen from here; None: none.
        """
        self._store = store
        self._ranks = ranks
        self._rank = rank
        self._timeout = timedelta(seconds=timeout_s)
        self._rendezvous = Rendezvous(store, rank, timeout_s, neighbours=neighbours)
        self._leaving = Rendezvous(store, rank, min(timeout_s, _LONGEST_EXIT_S))
        self.device = torch.device("cuda")
        self._make = make or _make_nccl
        self._made: dict[tuple[tuple[int, ...], str], Any] = {}

    def among(
        self, ranks: Sequence[int], purpose: str = "", timeout: timedelta | None = None
    ) -> Any:
        """Return the group of some ranks, which all of them ask for.

        It is connected on return, unless it is a link. A rank that is not among the ranks gets
        None.

        Raises:
            RunFailure: a rank of the pipeline has failed, or did not ask in time.
        """
        named = tuple(ranks)
        if self._rank not in named:
            return None
        if (named, purpose) not in self._made:
            if not self._made:
                atexit.register(self.close)
            name = f"nccl-{'-'.join(map(str, named))}-{purpose}"
            self._rendezvous.meet(f"group-{name}", named)
            cause = self._rendezvous.failure()
            if cause is not None:  # a rank that came here may have left again
                raise RunFailure(f"rank {self._rank} cannot continue: {cause}")
            group = self._make(
                PrefixStore(name, self._store),
                named.index(self._rank),
                [self._ranks[r] for r in named],
                timeout or self._timeout,
                name,
                purpose == LINK,
            )
            self._made[named, purpose] = group
            if purpose != LINK:
                self._connect(group)
        return self._made[named, purpose]

    def _connect(self, group: Any) -> None:
        """Run each collective once, because NCCL connects at the first use of an algorithm.

        Both ends would otherwise wait for that in the middle of a step.
        """
        one = torch.zeros(1, device=self.device)
        group.allreduce([one]).wait()
        group.allgather([[torch.zeros_like(one) for _ in range(group.size())]], [one]).wait()
        self._synchronize()

    def abort(self) -> None:
        """End all transfers in flight on this rank, without raising their errors.

        All communicators are aborted at the same time, because one may wait for another. An abort
        that takes too long is not waited for.
        """
        groups = list(self._made.values())
        self._made.clear()
        atexit.unregister(self.close)
        threads = [threading.Thread(target=_abort, args=(g,), daemon=True) for g in groups]
        for thread in threads:
            thread.start()
        until = time.monotonic() + _LONGEST_ABORT_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Free the communicators once all ranks have done their work; all of them call this.

        Ranks that are gone, or do not come soon, are not waited for.
        """
        if self._made:
            with suppress(RuntimeError, RunFailure):
                self._synchronize()
                self._leaving.meet("closing", range(len(self._ranks)))
        self.abort()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _abort(group: Any) -> None:
    with suppress(Exception):  # the first failure is the one to report
        group.abort()


def _make_nccl(
    store: Store, rank: int, ranks: Sequence[int], timeout: timedelta, name: str, is_link: bool
) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    options.global_ranks_in_group = list(ranks)
    options.group_name = name
    if is_link:
        options.is_high_priority_stream = True  # a send does not queue behind kernels of compute
        limit_ctas(options, os.environ)
    return nccl(store, rank, len(ranks), options)


def limit_ctas(options: Any, environment: Mapping[str, str]) -> None:
    """Limit the thread blocks that a link's transfers occupy, as a receive spins until data comes.

    `NCCL_MAX_CTAS`, where it is set, holds for all of NCCL; else `SYNTH_LINK_CTAS` for links alone.

    Raises:
        SynthError: the variable is not a whole number above 0.
    """
    config: Any = getattr(options, "config", None)
    if "NCCL_MAX_CTAS" in environment or not hasattr(config, "max_ctas"):
        return
    text = environment.get(_LINK_CTAS_VARIABLE, str(_LINK_CTAS))
    if not text.isdecimal() or int(text) == 0:
        raise SynthError(f"{_LINK_CTAS_VARIABLE} is {text!r}; it must be a whole number above 0")
    config.max_ctas = int(text)
