"""The place of a rank in a lowered schedule, and the state that its handlers share in a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from synth.schedule.lowering.lower import Instruction, Lowered
from synth.schedule.ops import Op

from .channels import Channels
from .clock import OpClock
from .stage_protocol import StageProtocol
from .step_table import Slots, StepTable


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """One rank of a lowered schedule.

    Attributes:
        stages: the stages that the placement gives it, by number; two copies of a stage on one rank
            are one.
        channels: opened for the lowered schedule's transfers.
        clock: records the times of ops and collectives, and the waits for them.
        slots: the slots of the table's values.
        table: the state of the step, shared by all steps.
    """

    lowered: Lowered
    rank: int
    stages: Mapping[int, StageProtocol]
    channels: Channels
    device: torch.device
    clock: OpClock
    slots: Slots = field(default_factory=Slots)
    table: StepTable = field(default_factory=StepTable)

    @property
    def program(self) -> Sequence[Instruction]:
        """The instructions of the rank, in order."""
        return self.lowered.programs[self.rank]

    @property
    def ops(self) -> Sequence[Op]:
        """The ops of the rank, in order."""
        return self.lowered.ops[self.rank]

    @property
    def holds_last(self) -> bool:
        """True if the rank has the last stage."""
        return any(stage.is_last for stage in self.stages.values())
