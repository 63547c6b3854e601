"""Programs: a rank's ops with the receives, sends, waits and reductions that lowering implies."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from synth.costs import HOST
from synth.schedule.lowering.effects import Effects
from synth.schedule.lowering.reductions import Reduction
from synth.schedule.ops import Op, Value


class Transfer(NamedTuple):
    """The move of a value between two ranks, or a rank and `HOST`; `duration_us` has latency."""

    value: Value
    source: int
    target: int
    num_bytes: int
    duration_us: int

    def __str__(self) -> str:
        """The readable form: `act(0, 3) from rank 0 to rank 1`."""
        return f"{self.value} from {end_name(self.source)} to {end_name(self.target)}"


def end_name(end: int) -> str:
    """The readable name of one end of a transfer."""
    return "the host" if end == HOST else f"rank {end}"


class Action(StrEnum):
    """The action of an instruction."""

    RECV = "RECV"
    SENT = "SENT"
    COMPUTE = "COMPUTE"
    SEND = "SEND"
    REDUCE = "REDUCE"


@dataclass(slots=True)
class Instruction:
    """One step of a rank's full program.

    RECV allocates a buffer and posts a receive. COMPUTE first waits for the receives of its inputs.
    SEND starts a send, SENT waits for it. REDUCE starts a reduction, for which the STEPs of its
    stage wait. `frees` are the values whose last use on this rank this is.
    """

    action: Action
    op: Op | None = None
    transfer: Transfer | None = None
    frees: list[Value] = field(default_factory=list)
    reduction: Reduction | None = None

    @property
    def compute(self) -> Op:
        """The op of a COMPUTE."""
        if self.op is None:
            raise ValueError(f"{self} has no op")
        return self.op

    @property
    def moved(self) -> Transfer:
        """The transfer of a RECV, SEND or SENT."""
        if self.transfer is None:
            raise ValueError(f"{self} has no transfer")
        return self.transfer

    @property
    def reduced(self) -> Reduction:
        """The reduction of a REDUCE."""
        if self.reduction is None:
            raise ValueError(f"{self} has no reduction")
        return self.reduction

    def __str__(self) -> str:
        """The readable form, for messages."""
        if self.action == Action.COMPUTE:
            return str(self.op)
        return f"{self.action} {self.reduction or self.transfer}"


@dataclass(frozen=True)
class CommunicationSlots:
    """The communication of one rank, by the place of an op in its program.

    Posts and waits stand before the op at their place, sends behind it. Reductions start behind
    the op at their place, or before the first op if the place is −1.
    """

    posts: defaultdict[int, list[Transfer]]
    waits: defaultdict[int, list[Transfer]]
    sends: defaultdict[int, list[Transfer]]
    reductions: defaultdict[int, list[Reduction]]

    @classmethod
    def nothing(cls) -> "CommunicationSlots":
        """A rank without communication."""
        return cls(defaultdict(list), defaultdict(list), defaultdict(list), defaultdict(list))


def insert_communication(
    ops: Sequence[Op], slots: CommunicationSlots, effects: Effects
) -> list[Instruction]:
    """Insert communication between a rank's ops, then mark the last use of each value."""
    program = list(_started(slots.reductions[-1]))
    for place in range(len(ops) + 1):
        program += [Instruction(Action.RECV, transfer=t) for t in slots.posts[place]]
        program += [Instruction(Action.SENT, transfer=t) for t in slots.waits[place]]
        if place < len(ops):
            program.append(Instruction(Action.COMPUTE, op=ops[place]))
            program += [Instruction(Action.SEND, transfer=t) for t in slots.sends[place]]
            program += _started(slots.reductions[place])
    _mark_deaths(program, effects)
    return program


def _started(reductions: Iterable[Reduction]) -> Iterable[Instruction]:
    return (Instruction(Action.REDUCE, reduction=reduction) for reduction in reductions)


def _mark_deaths(program: list[Instruction], effects: Effects) -> None:
    """Free a value after its last reader and its last SENT; without readers, right away."""
    death: dict[Value, int] = {}
    for index, instruction in enumerate(program):
        if instruction.action == Action.COMPUTE:
            for value in (*effects.makes(instruction.compute), *effects.reads(instruction.compute)):
                death[value] = index
        elif instruction.transfer is not None:
            death[instruction.transfer.value] = index
    for value, index in death.items():
        program[index].frees.append(value)
