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
    """A value's way from one rank to another, or to or from `HOST`; `duration_us` has latency."""

    value: Value
    source: int
    target: int
    num_bytes: int
    duration_us: int

    def __str__(self) -> str:
        """For people: `act(0, 3) from rank 0 to rank 1`."""
        return f"{self.value} from {end_name(self.source)} to {end_name(self.target)}"


def end_name(end: int) -> str:
    """One end of a transfer, for people."""
    return "the host" if end == HOST else f"rank {end}"


class Action(StrEnum):
    """What an instruction does."""

    RECV = "RECV"
    SENT = "SENT"
    COMPUTE = "COMPUTE"
    SEND = "SEND"
    REDUCE = "REDUCE"


@dataclass(slots=True)
class Instruction:
    """One step of a rank's full program.

    RECV allocates and posts a receive, COMPUTE first waits for the receives of what it reads, SEND
    starts a send, SENT waits for it. REDUCE starts a reduction, which the STEPs of its stage wait
    for. `frees` are the values whose last use on this rank this was.
    """

    action: Action
    op: Op | None = None
    transfer: Transfer | None = None
    frees: list[Value] = field(default_factory=list)
    reduction: Reduction | None = None

    @property
    def compute(self) -> Op:
        """The op of a COMPUTE."""
        assert self.op is not None
        return self.op

    @property
    def moved(self) -> Transfer:
        """The transfer of a RECV, SEND or SENT."""
        assert self.transfer is not None
        return self.transfer

    @property
    def reduced(self) -> Reduction:
        """The reduction of a REDUCE."""
        assert self.reduction is not None
        return self.reduction

    def __str__(self) -> str:
        """For people and error messages."""
        if self.action == Action.COMPUTE:
            return str(self.op)
        return f"{self.action} {self.reduction or self.transfer}"


@dataclass(frozen=True)
class Attached:
    """What stands beside one rank's ops, by place.

    Before the op at a place its posts and waits, behind it its sends; behind the op at a place
    (−1: before the first) the reductions that start there.
    """

    posts: defaultdict[int, list[Transfer]]
    waits: defaultdict[int, list[Transfer]]
    sends: defaultdict[int, list[Transfer]]
    reductions: defaultdict[int, list[Reduction]]

    @classmethod
    def nothing(cls) -> "Attached":
        """A rank without neighbours."""
        return cls(defaultdict(list), defaultdict(list), defaultdict(list), defaultdict(list))


def weave(ops: Sequence[Op], attached: Attached, effects: Effects) -> list[Instruction]:
    """Put what is attached between a rank's ops, then mark the deaths."""
    program = list(_started(attached.reductions[-1]))
    for place in range(len(ops) + 1):
        program += [Instruction(Action.RECV, transfer=t) for t in attached.posts[place]]
        program += [Instruction(Action.SENT, transfer=t) for t in attached.waits[place]]
        if place < len(ops):
            program.append(Instruction(Action.COMPUTE, op=ops[place]))
            program += [Instruction(Action.SEND, transfer=t) for t in attached.sends[place]]
            program += _started(attached.reductions[place])
    _mark_deaths(program, effects)
    return program


def _started(reductions: Iterable[Reduction]) -> Iterable[Instruction]:
    return (Instruction(Action.REDUCE, reduction=reduction) for reduction in reductions)


def _mark_deaths(program: list[Instruction], effects: Effects) -> None:
    """A value dies after its last reader and its last SENT; one that nobody wants, at once."""
    death: dict[Value, int] = {}
    for index, instruction in enumerate(program):
        if instruction.action == Action.COMPUTE:
            for value in (*effects.makes(instruction.compute), *effects.reads(instruction.compute)):
                death[value] = index
        elif instruction.transfer is not None:
            death[instruction.transfer.value] = index
    for value, index in death.items():
        program[index].frees.append(value)
