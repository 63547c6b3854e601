"""Validation points: the places up to which ranks may run before the last step is validated.

With optimizer post-validation a rank begins an iteration while other ranks still finish the
previous one. Up to its validation point it runs only F's, moves of their saved activations, and
their transfers. These leave the gradients unchanged, so they can be run again if the step was
wrong. An instruction before one rank's point must not depend on an instruction after another
rank's point, which would not run in that case.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from synth.costs.costs import HOST
from synth.op_kinds import MOVES, OpKind
from synth.schedule.lowering.lower import Action, Instruction, Lowered, Transfer
from synth.schedule.ops import Op, Value


@dataclass(frozen=True)
class HalfOpenTransfers:
    """Transfers of which only the other rank's end starts before its validation point.

    If the iteration begins again, this rank must start its end of them, in this order.
    """

    to_send: tuple[Transfer, ...]
    to_receive: tuple[Transfer, ...]


@dataclass(frozen=True)
class ValidationPoints:
    """The validation points; `ends` has the number of instructions before each rank's point."""

    ends: tuple[int, ...]

    def half_open(self, lowered: Lowered, rank: int) -> HalfOpenTransfers:
        """The transfers of a rank that are half open when all ranks are at their points.

        Transfers to and from the host have both ends on the rank and are never half open.
        """
        starts = _TransferStarts.of(lowered)

        def started(place: dict[Transfer, int], transfer: Transfer, at: int) -> bool:
            return place[transfer] < self.ends[at]

        def half(ours: dict[Transfer, int], theirs: dict[Transfer, int]) -> tuple[Transfer, ...]:
            mine = [t for t in ours if rank == (t.source if ours is starts.send else t.target)]
            return tuple(
                t
                for t in sorted(mine, key=ours.__getitem__)
                if not started(ours, t, rank)
                and started(theirs, t, t.target if ours is starts.send else t.source)
            )

        return HalfOpenTransfers(
            half(starts.send, starts.receive), half(starts.receive, starts.send)
        )


@dataclass(frozen=True)
class _TransferStarts:
    """The places in the programs of its two ranks at which each transfer starts."""

    send: dict[Transfer, int]
    receive: dict[Transfer, int]

    @classmethod
    def of(cls, lowered: Lowered) -> "_TransferStarts":
        def of_action(action: Action) -> dict[Transfer, int]:
            return {
                instruction.moved: place
                for program in lowered.programs
                for place, instruction in enumerate(program)
                if instruction.action == action and not _is_of_host(instruction.moved)
            }

        return cls(of_action(Action.SEND), of_action(Action.RECV))


def find_validation_points(lowered: Lowered) -> ValidationPoints:
    """Find the latest validation points.

    Each point starts before its rank's first instruction that is not an F, a move or a transfer,
    or before an F that runs at once with a BW.
    The points then move back until no instruction before one waits for one after another point.
    """
    starts = _TransferStarts.of(lowered)
    arriving = {(transfer.value, transfer.target): transfer for transfer in starts.receive}
    overlapped = lowered.schedule.overlapped
    ends = [_only_forward(program, overlapped) for program in lowered.programs]

    def blocked(rank: int, instruction: Instruction) -> bool:
        if instruction.action == Action.SENT:
            moved = instruction.moved
            return not _is_of_host(moved) and starts.receive[moved] >= ends[moved.target]
        return any(
            starts.send[arriving[value, rank]] >= ends[arriving[value, rank].source]
            for value in _reads(lowered, instruction)
            if (value, rank) in arriving
        )

    found = True
    while found:
        found = False
        for rank, program in enumerate(lowered.programs):
            waiting = (i for i in range(ends[rank]) if blocked(rank, program[i]))
            place = next(waiting, ends[rank])
            found = found or place < ends[rank]
            ends[rank] = place
    return ValidationPoints(tuple(ends))


def _only_forward(program: list[Instruction], overlapped: Set[Op]) -> int:
    """The number of instructions before the first that is not an F, a move or a transfer.

    An F that runs at once with a BW is not one of them.
    """
    for place, instruction in enumerate(program):
        if instruction.action == Action.COMPUTE:
            op = instruction.compute
            if op.kind not in (OpKind.F, *MOVES) or op in overlapped:
                return place
        elif instruction.action not in (Action.RECV, Action.SEND, Action.SENT):
            return place
    return len(program)


def _is_of_host(transfer: Transfer) -> bool:
    return HOST in (transfer.source, transfer.target)


def _reads(lowered: Lowered, instruction: Instruction) -> Iterator[Value]:
    if instruction.action == Action.COMPUTE:
        yield from lowered.effects.reads(instruction.compute)
