"""A process's place in a run: its rank in a pipeline, and which of several pipelines that is.

Processes are numbered pipeline by pipeline, so that the ranks of one, which send each other
activations, are neighbours on a machine. Data-parallel peers are the same rank of all pipelines:

    process       0  1  2  3 | 4  5  6  7
    pipeline      0  0  0  0 | 1  1  1  1
    rank          0  1  2  3 | 0  1  2  3
"""

from dataclasses import dataclass
from typing import Self

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from synth.errors import SynthError

from ..world import World


@dataclass(frozen=True)
class Place:
    """The place of a process among the pipelines.

    Attributes:
        rank: in its pipeline.
        pipeline: its number.
        num_pipelines: the pipelines that train side by side and average their gradients.
        ranks: the processes of this pipeline; None: there is one pipeline, of all processes.
        peers: the processes of the same rank in all pipelines; None: there is one pipeline.
    """

    rank: int
    pipeline: int = 0
    num_pipelines: int = 1
    ranks: DeviceMesh | None = None
    peers: DeviceMesh | None = None

    @classmethod
    def of(cls, world: World, num_ranks: int, num_pipelines: int) -> Self:
        """Take a place; all processes call this at the same time.

        Raises:
            SynthError: the number of processes is another one.
        """
        _check_size(world.size, num_ranks, num_pipelines)
        if num_pipelines == 1:
            return cls(world.rank)
        mesh = init_device_mesh(
            world.device.type, (num_pipelines, num_ranks), mesh_dim_names=("dp", "pp")
        )
        pipeline, rank = divmod(world.rank, num_ranks)
        return cls(rank, pipeline, num_pipelines, mesh["pp"], mesh["dp"])


def place_name(process: int, num_ranks: int, num_pipelines: int) -> str:
    """A process in messages: `rank 1`, or `rank 1 of pipeline 0` where there are several."""
    if num_pipelines == 1:
        return f"rank {process}"
    pipeline, rank = divmod(process, num_ranks)
    return f"rank {rank} of pipeline {pipeline}"


def _check_size(num_processes: int, num_ranks: int, num_pipelines: int) -> None:
    needed = num_ranks * num_pipelines
    if num_processes == needed:
        return
    wanted = f"the plan is for {num_ranks} ranks"
    if num_pipelines > 1:
        wanted += f", {num_pipelines} pipelines of it (--data-parallel) take {needed}"
    remedies = [f"start {needed} (torchrun --nproc-per-node)"]
    if num_processes % num_ranks == 0:
        remedies.append(f"give --data-parallel {num_processes // num_ranks}")
    if num_processes % num_pipelines == 0:
        remedies.append(f"solve again with --ranks {num_processes // num_pipelines}")
    raise SynthError(f"{wanted}, this run has {num_processes} processes; {', or '.join(remedies)}")
