"""A pipeline in which every stage is held by a number of ranks of its own (PipeDream's 1F1B-RR)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from synth.schedule.model import Placement
from synth.schedule.placements import taking_turns


class Term(StrEnum):
    """A term of a planner's cost model."""

    COMPUTE = "compute"
    SYNC = "weight synchronization"
    TRANSFER = "transfer"


class Bottleneck(NamedTuple):
    """The largest term of a cost model.

    Attributes:
        layers: the layers that it is of; of a transfer the layer whose output is sent.
    """

    term: Term
    layers: range

    def __str__(self) -> str:
        """The readable form: `compute of layers 3 to 7`."""
        first, last = self.layers[0], self.layers[-1]
        named = f"layer {first}" if first == last else f"layers {first} to {last}"
        return f"{self.term} of {named}"


class ReplicatedStage(NamedTuple):
    """A stage and the ranks that hold it, which take micro-batches in turn.

    Attributes:
        layers: places of its layers in the model.
        ranks: micro-batch j is on `ranks[j % len(ranks)]`.
    """

    layers: range
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReplicatedPipeline:
    """The choice of PipeDream's planner.

    Attributes:
        stages: in forward order; together they have all layers and all ranks.
        time_us: the predicted time per micro-batch while the pipeline is full.
        bound_by: the term of the cost model that is as large as that.
    """

    stages: tuple[ReplicatedStage, ...]
    time_us: float
    bound_by: Bottleneck

    @property
    def partition(self) -> tuple[int, ...]:
        """The number of layers of each stage."""
        return tuple(len(stage.layers) for stage in self.stages)

    @property
    def replicas(self) -> tuple[int, ...]:
        """The number of ranks of each stage."""
        return tuple(len(stage.ranks) for stage in self.stages)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return sum(self.replicas)

    @property
    def in_flight(self) -> int:
        """NOAM: the micro-batches that each rank of the first stage admits before a backward."""
        return -(-self.num_ranks // self.replicas[0])

    @property
    def placement(self) -> Placement:
        """The ranks of each stage, which take micro-batches in turn.

        Raises:
            SynthError: that makes more copies of the stages than ops can name.
        """
        return taking_turns([stage.ranks for stage in self.stages])
