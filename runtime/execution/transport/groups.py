"""The processes of one pipeline, as torch.distributed groups."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh

from synth.errors import SynthError

from ...processes import ProcessIdentity, seen_from_here
from .gloo import private_groups
from .gloo.private_groups import PrivateGroups
from .nccl.communicators import NcclGroups, prepare_cuda
from .objects import gather_objects
from .rank_group import RankGroup, named_failure, without_warnings_of_trees
from .rendezvous import Rendezvous


@dataclass(frozen=True)
class Group(RankGroup):
    """A group whose rank r is the process with the global rank `ranks[r]`.

    `private` and `nccl` are made for this pipeline alone. Host memory is sent by gloo on any
    backend. `nccl` is None if the backend is another one.
    """

    handle: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    rank: int
    private: PrivateGroups
    nccl: NcclGroups | None = None
    noun: str = "rank"
    """The word for a rank in messages."""

    @classmethod
    def world(cls, timeout_s: float = 300.0) -> Self:
        """Make a group of all processes, which call this at the same time.

        Raises:
            SynthError: torch.distributed has not been initialised.
        """
        return cls.of(None, timeout_s)

    @classmethod
    def of(
        cls,
        given: dist.ProcessGroup | DeviceMesh | None,
        timeout_s: float = 300.0,
        noun: str = "rank",
    ) -> Self:
        """Make a group from a process group, a one-dimensional device mesh, or None for the world.

        Its ranks call this at the same time. They wait for each other for `timeout_s` at most.
        Messages call a rank by `noun`.

        Raises:
            SynthError: torch.distributed has not been initialised; the mesh has several dimensions;
                this process is not in the group.
        """
        if not dist.is_initialized():
            raise SynthError(
                "a pipeline needs torch.distributed: call init_process_group first (torchrun sets "
                "what it reads)"
            )
        if isinstance(given, DeviceMesh):
            if given.ndim != 1:
                raise SynthError(
                    f"a pipeline runs along one dimension of a mesh, this one has {given.ndim}: "
                    f"{given.mesh_dim_names}; give mesh['pp'], say"
                )
            given = given.get_group()
        ranks = tuple(dist.get_process_group_ranks(given or dist.group.WORLD))
        rank = dist.get_rank(given)
        if rank < 0:
            raise SynthError(f"process {dist.get_rank()} is not in the pipeline's group {ranks}")
        on_nccl = "nccl" in _backends(given).values()
        if on_nccl:
            prepare_cuda()
        with named_failure(rank):
            name, neighbours = _introduced(given, rank)
        world: Any = dist.group.WORLD
        store = PrefixStore(name, (given or world).get_group_store())
        nccl = NcclGroups(store, ranks, rank, timeout_s, neighbours=neighbours) if on_nccl else None
        private = PrivateGroups(Rendezvous(store, rank, timeout_s, noun, neighbours))
        return cls(given, ranks, rank, private, nccl, noun)

    @property
    def rendezvous(self) -> Rendezvous:
        return self.private.rendezvous

    def backend(self, device: torch.device) -> str:
        """Name the transport of a device's tensors: `nccl` or `gloo`."""
        return _backends(self.handle).get(device.type, "gloo")

    def on(self, device: torch.device) -> Self:
        """Return a group of the same ranks whose subgroups move tensors of this device."""
        if self.nccl is None or self.backend(device) != "nccl":
            return replace(self, nccl=None)
        self.nccl.device = device
        return self

    def subgroup(
        self, ranks: Iterable[int], timeout: timedelta | None = None, purpose: str = ""
    ) -> Any:
        """Make a group of some of the pipeline's ranks; all of them call this, in the same order.

        Each purpose has a group of its own.
        """
        places = list(ranks)
        if self.nccl is None:
            return self.private.among(places, purpose)
        return self.nccl.among(places, purpose, timeout)

    def on_abort(self, abort: Callable[[], None]) -> None:
        """Register a function that closes other connections before this rank disconnects."""
        self.private.on_abort(abort)

    def abort(self) -> None:
        """Disconnect from all other ranks: first on the host, then on this rank's device."""
        self.private.abort()
        if self.nccl is not None:
            self.nccl.abort()

    def close(self) -> None:
        """Free the communicators; all ranks call this."""
        if self.nccl is not None:
            self.nccl.close()

    def share(self, value: object, source: int) -> Any:
        """Return one rank's object on all ranks.

        Raises:
            RunFailure: another rank is gone.
        """
        with named_failure(self.rank, self.rendezvous), without_warnings_of_trees():
            return private_groups.share(self._whole, value, source)

    def gather(self, value: object) -> list[Any]:
        """Return every rank's object, in rank order, on all ranks.

        Raises:
            RunFailure: another rank is gone.
        """
        with named_failure(self.rank, self.rendezvous), without_warnings_of_trees():
            return private_groups.gather(self._whole, value)

    @property
    def _whole(self) -> dist.ProcessGroupGloo | None:
        """The gloo group of all ranks; messages over NCCL would wait for the device."""
        return self.private.among(range(self.size))


def _introduced(
    given: dist.ProcessGroup | None, rank: int
) -> tuple[str, dict[int, ProcessIdentity]]:
    """Tell all ranks of this one's process.

    Returns:
        A name for the pipeline, the same on all ranks, and the processes of the other ranks that
        can be seen from here.
    """
    name = f"pipeline-{uuid.uuid4().hex}"
    told: list[tuple[str, ProcessIdentity]] = gather_objects((name, ProcessIdentity.own()), given)
    seen = seen_from_here({r: process for r, (_, process) in enumerate(told) if r != rank})
    # No rank goes on, and may end, before all have looked for it.
    gather_objects(None, given)
    return told[0][0], seen


def _backends(handle: dist.ProcessGroup | None) -> dict[str, str]:
    """Return the backend by kind of device, as parsed from `cpu:gloo,cuda:nccl`."""
    parts = (part.split(":") for part in dist.get_backend_config(handle).split(","))
    return {device: backend for device, backend in parts}
