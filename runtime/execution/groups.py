"""The processes of one pipeline, as torch.distributed knows them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from synth.errors import SynthError

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Pipeline rank r is the process with the global rank `ranks[r]`.

    `beside` are the ranks of all pipelines of the world, where their process groups must be made by
    all processes together.
    """

    handle: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    rank: int
    beside: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def world(cls) -> Self:
        """All processes.

        Raises:
            SynthError: torch.distributed has not been initialised.
        """
        return cls.of(None)

    @classmethod
    def of(cls, given: dist.ProcessGroup | DeviceMesh | None) -> Self:
        """From a process group, a one-dimensional device mesh, or none for all processes.

        Raises:
            SynthError: torch.distributed has not been initialised; the mesh has several
                dimensions; this process is not in the group.
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
        beside = None
        if given is not None and "nccl" in _backends(given).values():
            # NCCL splits communicators off that of the world, which takes all of its processes.
            everyones: list[tuple[int, ...]] = [()] * dist.get_world_size()
            dist.all_gather_object(everyones, ranks)
            beside = tuple(sorted(set(everyones)))
        return cls(given, ranks, rank, beside)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def backend(self, device: torch.device) -> str:
        """What moves a device's tensors: `nccl` or `gloo`."""
        return _backends(self.handle).get(device.type, "gloo")

    def subgroup(self, ranks: Iterable[int], timeout: timedelta | None = None) -> Any:
        """A group of some of the pipeline's ranks; all of them call this, in the same order.

        On NCCL, where several pipelines run beside each other, all ranks of all of them do.
        """
        places = list(ranks)
        if self.beside is None:
            alone = self.handle is not None and len(self.ranks) < dist.get_world_size()
            members = [self.ranks[place] for place in places]
            return dist.new_group(members, timeout=timeout, use_local_synchronization=alone)
        made = {
            pipeline: dist.new_group([pipeline[place] for place in places], timeout=timeout)
            for pipeline in self.beside
        }
        return made[self.ranks]

    def share(self, value: object, source: int) -> Any:
        """One rank's object, on all."""
        shared = [value]
        dist.broadcast_object_list(shared, self.ranks[source], self.handle)
        return shared[0]

    def agree(self, source: int, make: Callable[[], T]) -> T:
        """What one rank makes, on all; or its error, on all.

        Raises:
            SynthError: what that rank's `make` raised.
        """
        told: tuple[Any, str | None] = (None, None)
        if source == self.rank:
            try:
                told = (make(), None)
            except SynthError as error:
                told = (None, str(error))
        made, refused = self.share(told, source)
        if refused is not None:
            raise SynthError(refused)
        found: T = made
        return found

    def gather(self, value: object) -> list[Any]:
        """Every rank's object, in rank order, on all."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, self.handle)
        return gathered


def _backends(handle: dist.ProcessGroup | None) -> dict[str, str]:
    """The backend of each kind of device: of `cpu:gloo,cuda:nccl`, say."""
    parts = (part.split(":") for part in dist.get_backend_config(handle).split(","))
    return {device: backend for device, backend in parts}
