"""The mesh of a run's processes: data × pipeline × tensor; and the group that one rank may be.

A rank of a plan is one process, or a group of them that divides every layer of its stages. The
plan's times and bytes are those of the slowest and the fullest process of the group. Processes are
numbered such that those of a group, which exchange the most, are neighbours, and then those of a
pipeline (2 pipelines of 2 ranks, each a group of 2):

    process       0  1 | 2  3 || 4  5 | 6  7
    pipeline      0  0   0  0    1  1   1  1
    rank          0  0   1  1    0  0   1  1
    of the group  0  1   0  1    0  1   0  1
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Self

from pydantic import Field

from synth.errors import SynthError
from synth.records.record import BriefRecord

_Size = Annotated[int, Field(gt=0, le=1 << 16)]


class DeviceGroup(BriefRecord):
    """The devices that one rank is, whose division its times and bytes have in them.

    A rank of the plan is `tensor` × `context` devices. Experts are shared by ranks of all these
    groups and of the data-parallel pipelines together (Megatron-LM's parallel folding), and so add
    no devices; neither do those that divide each expert.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("expert_tensor",)

    tensor: _Size = Field(default=1, description="devices that divide the layers' matrices")
    sequence: bool = Field(
        default=False, description="the tensor group divides what is between the matrices, too"
    )
    context: _Size = Field(default=1, description="devices that divide the tokens of a sequence")
    expert: _Size = Field(default=1, description="devices that divide the experts")
    expert_tensor: _Size | None = Field(
        default=None, description="devices that divide each expert; None: not known to have experts"
    )
    data: _Size = Field(default=1, description="data-parallel pipelines that were counted on")

    @property
    def parts_of_expert(self) -> int:
        """Devices that divide each expert."""
        return self.expert_tensor or 1

    @property
    def devices(self) -> int:
        """Devices of a rank."""
        return self.tensor * self.context

    @property
    def words(self) -> str:
        """Its sizes, as `tp 8 with sequence parallelism, cp 2`; empty if all are 1."""
        named = {"tp": self.tensor, "cp": self.context, "ep": self.expert}
        named |= {"etp": self.parts_of_expert, "dp": self.data}
        shown = {name: f"{name} {size}" for name, size in named.items() if size > 1}
        if self.sequence and self.tensor > 1:
            shown["tp"] += " with sequence parallelism"
        return ", ".join(shown.values())

    def layout(self, ranks: int) -> str:
        """The devices of a run of pipelines of so many ranks, in words."""
        pipelines = f"{self.data} pipelines × {ranks} ranks × {self.devices} devices"
        return f"{self.data * ranks * self.devices} = {pipelines} ({self.words})"

    def check_executable(self) -> None:
        """Refuse what only other programs execute."""
        experts = self.expert * self.parts_of_expert
        for name, size in (("context", self.context), ("expert", experts)):
            if size > 1:
                raise SynthError(
                    f"the plan's ranks are groups with {name} parallelism over {size} devices, and "
                    f"synth executes tensor parallelism alone; export the plan to the program that "
                    f"runs it (`synth export`), or profile the layers without it"
                )


class Coordinates(NamedTuple):
    """The place of a process in a mesh, counted from 0."""

    pipeline: int
    rank: int
    tensor: int


@dataclass(frozen=True)
class Mesh:
    """The processes of a run.

    Attributes:
        data: the pipelines that train side by side and average their gradients.
        ranks: of each pipeline.
        tensor: the processes of each rank.
    """

    data: int
    ranks: int
    tensor: int = 1

    NAMES = ("dp", "pp", "tp")

    @classmethod
    def of(cls, group: DeviceGroup | None, ranks: int, data: int | None = None) -> Self:
        """Return the mesh of a plan.

        Args:
            group: each of its ranks; None: one process.
            ranks: their number.
            data: the pipelines; None: as many as the group counts on.

        Raises:
            SynthError: the group has devices that no process of synth stands for.
        """
        group = group or DeviceGroup()
        group.check_executable()
        return cls(data or group.data, ranks, group.tensor)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The sizes of its dimensions, which are named `NAMES`."""
        return self.data, self.ranks, self.tensor

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.data * self.ranks * self.tensor

    def place(self, process: int) -> Coordinates:
        """Return the coordinates of a process."""
        whole, tensor = divmod(process, self.tensor)
        return Coordinates(*divmod(whole, self.ranks), tensor)

    def processes(self, rank: int) -> range:
        """Return the first pipeline's processes of a rank."""
        return range(rank * self.tensor, (rank + 1) * self.tensor)

    def name(self, process: int) -> str:
        """A process in messages: `rank 1`, and what tells it apart where there are several."""
        place = self.place(process)
        named = f"rank {place.rank}"
        if self.tensor > 1:
            named = f"process {place.tensor} of {named}"
        return named if self.data == 1 else f"{named} of pipeline {place.pipeline}"

    def check_size(self, num_processes: int) -> None:
        """Refuse another number of processes."""
        if num_processes == self.size:
            return
        wanted = f"the plan is for {self.ranks} ranks"
        if self.tensor > 1:
            wanted += f" of {self.tensor} processes each (tensor parallelism)"
        if self.data > 1:
            wanted += f", {self.data} pipelines of it (--data-parallel) take {self.size}"
        elif self.tensor > 1:
            wanted += f", {self.size} processes"
        one = self.ranks * self.tensor
        remedies = [f"start {self.size} (torchrun --nproc-per-node)"]
        if num_processes % one == 0:
            remedies.append(f"give --data-parallel {num_processes // one}")
        if num_processes % (self.data * self.tensor) == 0:
            remedies.append(f"solve again with --ranks {num_processes // self.data // self.tensor}")
        raise SynthError(
            f"{wanted}, this run has {num_processes} processes; {', or '.join(remedies)}"
        )
