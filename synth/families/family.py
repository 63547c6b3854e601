"""What a family of schedules is."""

from collections.abc import Callable
from dataclasses import dataclass

from synth.kinds import OpKind
from synth.schedule.model import Schedule
from synth.schedule.ops import Op

Programs = list[list[Op]]


@dataclass(frozen=True)
class Family:
    """A published schedule: its name, its source, and the rule that makes each rank's program."""

    name: str
    source: str
    make: Callable[[int, int], Programs]

    def schedule(self, num_ranks: int, num_micro_batches: int) -> Schedule:
        """The schedule for so many ranks and micro-batches, stage s on rank s."""
        programs = self.make(num_ranks, num_micro_batches)
        return Schedule.linear(self.name, num_micro_batches, programs)


def forwards(stage: int, first: int, end: int) -> list[Op]:
    """F of micro-batches first … end − 1."""
    return [Op(OpKind.F, stage, j) for j in range(first, end)]
