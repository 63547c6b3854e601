"""The processes of one pipeline, as torch.distributed knows them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from synth.errors import SynthError


@dataclass(frozen=True)
class Group:
    """Pipeline rank r is the process with the global rank `ranks[r]`."""

    handle: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    rank: int

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
        return cls(given, ranks, rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def backend(self) -> str:
        """`nccl` or `gloo`."""
        return str(dist.get_backend(self.handle))

    def subgroup(self, ranks: Iterable[int], timeout: timedelta | None = None) -> Any:
        """A group of some of the pipeline's ranks; all of them call this, in the same order.

        Several pipelines beside each other (a dimension of a mesh) make theirs independently.
        """
        members = [self.ranks[rank] for rank in ranks]
        alone = self.handle is not None and len(self.ranks) < dist.get_world_size()
        return dist.new_group(members, timeout=timeout, use_local_synchronization=alone)

    def share(self, value: object, source: int) -> Any:
        """One rank's object, on all."""
        shared = [value]
        dist.broadcast_object_list(shared, self.ranks[source], self.handle)
        return shared[0]

    def gather(self, value: object) -> list[Any]:
        """Every rank's object, in rank order, on all."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, self.handle)
        return gathered
