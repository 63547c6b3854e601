"""Programs: a rank's ops with the receives, sends, waits and reductions that lowering implies."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from synth.costs.costs import HOST
from synth.op_kinds import OpKind
from synth.schedule.lowering.collectives import Collective
from synth.schedule.lowering.effects import Effects
from synth.schedule.ops import Op, Value, ValueKind


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
    COLLECT = "COLLECT"
    COLLECTED = "COLLECTED"


@dataclass(slots=True)
class Instruction:
    """One step of a rank's full program.

    RECV allocates a buffer and posts a receive. COMPUTE first waits for the receives of its inputs.
    SEND starts a send, SENT waits for it. COLLECT starts a collective; an all-gather allocates its
    buffer there. STEPs wait for all-reduces and reduce-scatters, the first reader for an
    all-gather, and COLLECTED for a reduce-scatter whose buffer it frees. `held` is the value that a
    SEND reads: the transferred one, those weights of the visit before that are handed on, or None
    for weights that the rank keeps. `frees` are the values whose last use on this rank this is.
    """

    action: Action
    op: Op | None = None
    transfer: Transfer | None = None
    frees: list[Value] = field(default_factory=list)
    collective: Collective | None = None
    held: Value | None = None

    @property
    def compute(self) -> Op:
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
    def collected(self) -> Collective:
        """The collective of a COLLECT or COLLECTED."""
        if self.collective is None:
            raise ValueError(f"{self} has no collective")
        return self.collective

    def __str__(self) -> str:
        """The readable form, for messages."""
        if self.action == Action.COMPUTE:
            return str(self.op)
        return f"{self.action} {self.collective or self.transfer}"


@dataclass(frozen=True)
class CommunicationSlots:
    """The communication of one rank, by the place of an op in its program.

    Posts, waits and ends of collectives stand before the op at their place, sends after it.
    Collectives start after the op at their place. The place −1 is before the first op. `relayed`
    has, for transfers of weights, those of the visit before; None: the rank keeps them.
    """

    posts: defaultdict[int, list[Transfer]] = field(default_factory=lambda: defaultdict(list))
    waits: defaultdict[int, list[Transfer]] = field(default_factory=lambda: defaultdict(list))
    sends: defaultdict[int, list[Transfer]] = field(default_factory=lambda: defaultdict(list))
    collectives: defaultdict[int, list[Collective]] = field(
        default_factory=lambda: defaultdict(list)
    )
    collected: defaultdict[int, list[Collective]] = field(default_factory=lambda: defaultdict(list))
    relayed: dict[Transfer, Value | None] = field(default_factory=dict)

    def sending(self, action: Action, transfers: Iterable[Transfer]) -> Iterator[Instruction]:
        """The SENDs or SENTs of transfers."""
        for transfer in transfers:
            held = self.relayed.get(transfer, transfer.value)
            yield Instruction(action, transfer=transfer, held=held)


def insert_communication(
    ops: Sequence[Op], slots: CommunicationSlots, effects: Effects, overlapped: Set[Op]
) -> list[Instruction]:
    """Insert communication between a rank's ops, then mark the last use of each value.

    Nothing is inserted between F and BW that run at once, and what F uses last is freed after BW.
    """
    program = list(slots.sending(Action.SEND, slots.sends[-1]))
    program += _started(slots.collectives[-1])
    for place in range(len(ops) + 1):
        program += [Instruction(Action.RECV, transfer=t) for t in slots.posts[place]]
        program += slots.sending(Action.SENT, slots.waits[place])
        program += [Instruction(Action.COLLECTED, collective=c) for c in slots.collected[place]]
        if place < len(ops):
            program.append(Instruction(Action.COMPUTE, op=ops[place]))
            program += slots.sending(Action.SEND, slots.sends[place])
            program += _started(slots.collectives[place])
    _mark_deaths(program, effects, overlapped)
    return program


def _started(collectives: Iterable[Collective]) -> Iterable[Instruction]:
    return (Instruction(Action.COLLECT, collective=one) for one in collectives)


def _mark_deaths(program: list[Instruction], effects: Effects, overlapped: Set[Op]) -> None:
    """Free a value after its last reader and its last SENT; without readers, right away."""
    death: dict[Value, int] = {}
    reduced: dict[tuple[int, int], Value] = {}  # what REDUCE_GRADs hand on, by stage and number
    for index, instruction in enumerate(program):
        if instruction.action == Action.COMPUTE:
            op = instruction.compute
            for value in (*effects.makes(op), *effects.reads(op)):
                death[value] = index + (op in overlapped)
            if op.kind == OpKind.REDUCE_GRAD:
                reduced[op.stage, op.microbatch] = Value(ValueKind.GRAD_ACC, *op[1:])
        elif instruction.action == Action.COLLECTED:
            value = reduced[instruction.collected.stage, instruction.collected.number]
            if value in death:  # else it is part of what the rank keeps
                death[value] = index
        elif instruction.action == Action.RECV:
            death[instruction.moved.value] = index
        elif instruction.held is not None:
            death[instruction.held] = index
    for value, index in death.items():
        program[index].frees.append(value)
