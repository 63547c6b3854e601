"""A process's place in a run: its coordinates in the mesh, and its groups along each dimension."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Self

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from synth.errors import SynthError
from synth.profile.mesh import Mesh
from synth.run_options.emulation_options import EmulationOptions
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan

from ..world import World

Divide = Callable[[Iterable[nn.Module]], None]


@dataclass(frozen=True)
class Place:
    """The place of a process in the mesh of a run.

    Attributes:
        rank: in its pipeline.
        mesh: of all processes.
        ranks: the processes of this pipeline with the same place in their groups; None: there is
            one pipeline, of all processes.
        peers: the processes with the same place in all pipelines; None: there is one pipeline.
        group: the processes that are this rank; None: it is one process.
    """

    rank: int
    mesh: Mesh
    pipeline: int = 0
    ranks: DeviceMesh | None = None
    peers: DeviceMesh | None = None
    group: DeviceMesh | None = None

    @classmethod
    def of(cls, world: World, mesh: Mesh) -> Self:
        """Take a place; all processes call this at the same time.

        Raises:
            SynthError: the number of processes is another one.
        """
        mesh.check_size(world.size)
        if mesh.size == mesh.ranks:
            return cls(world.rank, mesh)
        made = init_device_mesh(world.device.type, mesh.shape, mesh_dim_names=Mesh.NAMES)
        place = mesh.place(world.rank)
        peers = made["dp"] if mesh.data > 1 else None
        group = made["tp"] if mesh.tensor > 1 else None
        return cls(place.rank, mesh, place.pipeline, made["pp"], peers, group)

    @property
    def processes_per_rank(self) -> int:
        """The processes that compute the same loss, or that of another pipeline."""
        return self.mesh.data * self.mesh.tensor

    def division(self, address: str | None) -> Divide | None:
        """Return how the processes of this rank divide its layers; None: it is one process.

        Args:
            address: the user's function; see `divide_layers`.
        """
        if self.group is None:
            return None
        from ..models.tensor_parallel import divide_layers  # slow to import

        return partial(divide_layers, group=self.group, address=address)


def mesh_of(plan: Plan, options: TrainOptions | EmulationOptions) -> Mesh:
    """Return the processes of a run; an emulated rank is one process, also if it is a group.

    Raises:
        SynthError: the plan's ranks have devices that no process of synth stands for, or are groups
            that do not do what the options ask for.
    """
    plan.check_executable()
    if isinstance(options, EmulationOptions):
        return Mesh(1, plan.num_ranks)
    mesh = plan.mesh(options.data_parallel)
    if mesh.tensor > 1:
        _check_dividable(plan, options)
    elif options.parallelize is not None:
        raise SynthError(
            f"--parallelize {options.parallelize} divides layers, and each rank of the plan is one "
            f"process; profile with --tensor-parallel and solve again, or leave it out"
        )
    return mesh


def _check_dividable(plan: Plan, options: TrainOptions) -> None:
    """Refuse what ranks that are groups of processes do not do."""
    refused = {
        "a plan that passes weights": plan.weights is not None,
        "a plan without a flush": plan.versions is not None,
        "--look-ahead": options.look_ahead > 0,
        "post-validation": options.optimizer_of(plan.workload.optimizer).post_validation,
    }
    for what, is_asked in refused.items():
        if is_asked:
            raise SynthError(
                f"the plan's ranks are groups of {plan.mesh().tensor} processes (tensor "
                f"parallelism), with which {what} does not go together; leave it out, or profile "
                f"without --tensor-parallel"
            )
