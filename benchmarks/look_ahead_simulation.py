"""A simulation of ranks that look ahead: events in continuous time, with any durations.

It drives the `LookAhead` of each rank, so the choice of ops is that of the executor.
"""

import heapq
from collections.abc import Callable, Sequence

from synth.schedule.look_ahead import LookAhead
from synth.schedule.lowering.lower import Action, Lowered, Transfer
from synth.schedule.ops import Op

OpTime = Callable[[int, Op], float]
"""The duration of an op on a rank, in µs."""
TransferTime = Callable[[Transfer], float]


class LookAheadSimulation:
    """One iteration of all ranks; links serve one transfer at a time, in the order of the plan."""

    def __init__(
        self,
        lowered: Lowered,
        most_ops: int,
        caps_bytes: Sequence[int] | None,
        op_us: OpTime,
        transfer_us: TransferTime,
    ) -> None:
        """Prepare an iteration.

        Args:
            lowered: the plan.
            most_ops: the look-ahead of every rank; 0: the plan's order.
            caps_bytes: the memory limits; None: each rank's planned peak.
            op_us: the time of each op.
            transfer_us: the time of each transfer.
        """
        caps: Sequence[int | None] = caps_bytes or [None] * lowered.num_ranks
        self.ranks = [LookAhead(lowered, rank, most_ops, cap) for rank, cap in enumerate(caps)]
        self._lowered = lowered
        self._op_us, self._transfer_us = op_us, transfer_us
        self._started: dict[Transfer, list[float]] = {}
        self._free_us: dict[tuple[int, int], float] = {}
        self._arrived: set[Transfer] = set()
        self._busy = [False] * lowered.num_ranks
        self._running: list[int | None] = [None] * lowered.num_ranks
        self._events: list[tuple[float, int, Transfer | int]] = []
        self._num_events = 0

    def run(self) -> float:
        """Return the time of the iteration in µs.

        Raises:
            RuntimeError: the ranks wait for each other.
        """
        now = 0.0
        for rank in range(len(self.ranks)):
            self._go_on(rank, now)
        while self._events:
            now, _, what = heapq.heappop(self._events)
            if isinstance(what, Transfer):
                self._arrived.add(what)
                wakened = [what.source, what.target]
            else:
                self._end_op(what, now)
                wakened = [what]
            for rank in wakened:
                self._go_on(rank, now)
        lengths = [len(program) for program in self._lowered.programs]
        if [rank.head for rank in self.ranks] != lengths:
            raise RuntimeError("the ranks wait for each other")
        return now

    def _go_on(self, rank: int, now: float) -> None:
        """Run a rank's instructions until one takes time or waits."""
        chooser, program = self.ranks[rank], self._lowered.programs[rank]

        def has_arrived(place: int) -> bool:
            return program[place].moved in self._arrived

        while not self._busy[rank] and chooser.head < len(program):
            index = chooser.choose(has_arrived)
            if index is None:
                return
            instruction = program[index]
            if instruction.action == Action.SENT and instruction.moved not in self._arrived:
                return
            early = index != chooser.head
            chooser.run(index)
            if instruction.action == Action.COMPUTE:
                self._busy[rank] = True
                self._running[rank] = index if early else None
                self._push(now + self._op_us(rank, instruction.compute), rank)
            elif instruction.action in (Action.RECV, Action.SEND):
                self._start(instruction.moved, now)

    def _end_op(self, rank: int, now: float) -> None:
        """End a rank's op; the values of an early one are sent if it is their turn."""
        self._busy[rank] = False
        index = self._running[rank]
        if index is not None:
            for send in self.ranks[rank].sends_behind(index):
                self.ranks[rank].run(send)
                self._start(self._lowered.programs[rank][send].moved, now)

    def _start(self, transfer: Transfer, now: float) -> None:
        ends = self._started.setdefault(transfer, [])
        ends.append(now)
        if len(ends) == 2:
            link = transfer.source, transfer.target
            start = max(now, self._free_us.get(link, 0.0))
            self._free_us[link] = end = start + self._transfer_us(transfer)
            self._push(end, transfer)

    def _push(self, at: float, what: Transfer | int) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at, self._num_events, what))
