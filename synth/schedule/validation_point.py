"""How far ranks may run into an iteration before they know whether the step before it was right.

With optimizer post-validation a rank begins an iteration while other ranks still finish the one
before. Up to its validation point it runs only F's, moves of what these saved, and their
transfers, which leave no trace in the gradients, so that they can be run again. What a rank runs
before its point must not need what another rank runs behind its own: if the step was wrong, nobody
gets that far.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from synth.costs import HOST
from synth.kinds import MOVES, OpKind
from synth.schedule.lowering.lower import Action, Instruction, Lowered, Transfer
from synth.schedule.ops import Value


@dataclass(frozen=True)
class Strays:
    """Transfers that one end has started before its validation point, and the other has not.

    If the iteration begins again, this rank must give them their other end, in this order.
    """

    to_send: tuple[Transfer, ...]
    to_receive: tuple[Transfer, ...]


@dataclass(frozen=True)
class Prefix:
    """The validation points: how many instructions each rank runs before it validates."""

    ends: tuple[int, ...]

    def strays(self, lowered: Lowered, rank: int) -> Strays:
        """The transfers of a rank that are half started when all ranks stand at their points.

        Those to and from the host have both ends on the rank.
        """
        places = _Places.of(lowered)

        def started(place: dict[Transfer, int], transfer: Transfer, at: int) -> bool:
            return place[transfer] < self.ends[at]

        def half(ours: dict[Transfer, int], theirs: dict[Transfer, int]) -> tuple[Transfer, ...]:
            mine = [t for t in ours if rank == (t.source if ours is places.send else t.target)]
            return tuple(
                t
                for t in sorted(mine, key=ours.__getitem__)
                if not started(ours, t, rank)
                and started(theirs, t, t.target if ours is places.send else t.source)
            )

        return Strays(half(places.send, places.receive), half(places.receive, places.send))


@dataclass(frozen=True)
class _Places:
    """Where in the programs of its two ranks a transfer starts."""

    send: dict[Transfer, int]
    receive: dict[Transfer, int]

    @classmethod
    def of(cls, lowered: Lowered) -> "_Places":
        def of_action(action: Action) -> dict[Transfer, int]:
            return {
                instruction.moved: place
                for program in lowered.programs
                for place, instruction in enumerate(program)
                if instruction.action == action and not _is_of_host(instruction.moved)
            }

        return cls(of_action(Action.SEND), of_action(Action.RECV))


def find_prefix(lowered: Lowered) -> Prefix:
    """Find the latest validation points.

    Starts before each rank's first instruction that is more than F, a move or a transfer, and goes
    back until nothing before a point waits for something behind another.
    """
    places = _Places.of(lowered)
    arriving = {(transfer.value, transfer.target): transfer for transfer in places.receive}
    ends = [_only_forward(program) for program in lowered.programs]

    def blocked(rank: int, instruction: Instruction) -> bool:
        if instruction.action == Action.SENT:
            moved = instruction.moved
            return not _is_of_host(moved) and places.receive[moved] >= ends[moved.target]
        return any(
            places.send[arriving[value, rank]] >= ends[arriving[value, rank].source]
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
    return Prefix(tuple(ends))


def _only_forward(program: list[Instruction]) -> int:
    """How many instructions stand before the first that is more than F, a move or a transfer."""
    for place, instruction in enumerate(program):
        if instruction.action == Action.COMPUTE:
            if instruction.compute.kind not in (OpKind.F, *MOVES):
                return place
        elif instruction.action not in (Action.RECV, Action.SEND, Action.SENT):
            return place
    return len(program)


def _is_of_host(transfer: Transfer) -> bool:
    return HOST in (transfer.source, transfer.target)


def _reads(lowered: Lowered, instruction: Instruction) -> Iterator[Value]:
    if instruction.action == Action.COMPUTE:
        yield from lowered.effects.reads(instruction.compute)
