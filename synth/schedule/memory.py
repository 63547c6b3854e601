"""Memory of a lowered schedule: it follows from the order of each program alone, never from time.

While an op runs, the level is what was alive at its start plus the op's measured rise; afterwards
it is what is alive then. Receive buffers count from their posting, sent values until waited for.
"""

from dataclasses import dataclass

from synth.schedule.lower import Action, Lowered


@dataclass(frozen=True)
class MemoryCurve:
    """A rank's level at each instruction of its program: the highest during it, and after it."""

    static_bytes: int
    highest: list[int]
    after: list[int]

    @property
    def peak_bytes(self) -> int:
        """The highest level of all."""
        return max(self.highest, default=self.static_bytes)


def static_bytes(lowered: Lowered, rank: int) -> int:
    """Parameters, gradients and optimizer state of the stages that a rank holds."""
    stages = lowered.costs.stages
    return sum(stages[stage].static_bytes for stage, _ in lowered.schedule.placement.held[rank])


def memory_curve(lowered: Lowered, rank: int) -> MemoryCurve:
    """Walk a rank's program and add up the bytes."""
    effects, stages = lowered.effects, lowered.costs.stages
    level = base = static_bytes(lowered, rank)
    highest, after = [], []
    makes = iter(lowered.makes[rank])
    for instruction in lowered.programs[rank]:
        top = level
        if instruction.action == Action.COMPUTE:
            op = instruction.compute
            top = level + stages[op.stage].rise_bytes[op.kind]
            level += sum(effects.bytes_of(value) for value in next(makes))
        elif instruction.action == Action.RECV:
            level += instruction.moved.num_bytes
        level -= sum(effects.bytes_of(value) for value in instruction.frees)
        highest.append(max(top, level))
        after.append(level)
    return MemoryCurve(base, highest, after)


def peak_bytes(lowered: Lowered) -> tuple[int, ...]:
    """The peak of every rank."""
    return tuple(memory_curve(lowered, rank).peak_bytes for rank in range(lowered.num_ranks))
