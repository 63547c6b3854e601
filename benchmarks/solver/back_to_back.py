"""Simulates several iterations back to back: every rank runs its full program repeatedly.

The period is a claim about more than one iteration, but a schedule is only one. Here every rank
executes the instructions of its lowered program, as the executor does: it posts receives, starts
sends and later waits for them, and starts reductions. After the last instruction it begins again
with the first. A transfer starts when it was sent, its receive is posted and the previous transfer
on its link has ended. No code is shared with the simulator, so one iteration also checks that one.

    rank r   … | last op | (1) SENT  ||  (2) RECV | first op | …

Between iterations, a rank waits for its last sends (1), and only then posts its first receives (2),
so their transfers can only start then. The period counts neither. With `overlap` neither costs
time: receives are posted early enough, and sends are waited for in the background. The host's
memory accepts every value at once, and sends it back when the receive is posted.
"""

from collections import defaultdict
from typing import NamedTuple

from synth.costs.costs import HOST
from synth.op_kinds import OpKind
from synth.schedule.lowering.collectives import Collective
from synth.schedule.lowering.lower import Lowered
from synth.schedule.lowering.programs import Action, Instruction, Transfer
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.simulate import Timeline


class _Arrival(NamedTuple):
    """A value's arrival on a rank in one iteration."""

    iteration: int
    value: Value
    rank: int


class _Turn(NamedTuple):
    """One stage's reduction in one iteration."""

    iteration: int
    stage: int


def iteration_ends_us(lowered: Lowered, num_iterations: int, *, overlap: bool = False) -> list[int]:
    """The end of the last op of each iteration, from the first op of all, in µs.

    Args:
        overlap: no rank waits at (1), and receives of (2) are posted early enough.

    Raises:
        RuntimeError: the programs wait for each other.
        ValueError: the schedule has weight passing.
    """
    if lowered.visits is not None:
        raise ValueError("this schedule has weight passing; it is not run back to back")
    return _Ranks(lowered, num_iterations, overlap).run()


def executed_period_us(timeline: Timeline) -> int:
    """Return a time per iteration that holds although (1) and (2) cost time, in µs.

    It is the largest time of a rank from the start of its first op, or of a transfer that (2)
    posts, to the end of its last op, or of a transfer that (1) waits for. If every iteration runs
    like the first one and starts this much later than the previous one, the two do not overlap.
    """
    lowered = timeline.lowered
    num_ops, transfers = lowered.first_node[-1], lowered.transfers
    nodes = {transfer: num_ops + i for i, transfer in enumerate(transfers)}
    spans = []
    for rank, program in enumerate(lowered.programs):
        opening, closing = _ends_of(program)
        own = range(lowered.first_node[rank], lowered.first_node[rank + 1])
        begins = [timeline.start_us[own[0]]]
        begins += [timeline.start_us[nodes[i.moved]] for i in program[:opening] if _receives(i)]
        ends = [timeline.end_us[own[-1]]]
        ends += [timeline.end_us[nodes[i.moved]] for i in program[closing + 1 :] if _is_wait(i)]
        spans.append(max(ends) - min(begins))
    return max(spans)


def _ends_of(program: list[Instruction]) -> tuple[int, int]:
    """The places of the first and the last op."""
    ops = [place for place, i in enumerate(program) if i.action == Action.COMPUTE]
    return ops[0], ops[-1]


def _receives(instruction: Instruction) -> bool:
    return instruction.action == Action.RECV


def _is_wait(instruction: Instruction) -> bool:
    return instruction.action == Action.SENT


class _Ranks:
    """The state of all ranks and links."""

    def __init__(self, lowered: Lowered, num_iterations: int, overlap: bool) -> None:
        self.lowered, self.num_iterations, self.overlap = lowered, num_iterations, overlap
        self.programs = list(lowered.programs)
        self.ends = [_ends_of(program) for program in self.programs]
        self.inputs = [self._inputs(program) for program in self.programs]
        self.clock_us = [0] * lowered.num_ranks
        self.places = [(0, 0)] * lowered.num_ranks  # (iteration, place of the next instruction)
        self.posted_us: dict[_Arrival, int] = {}
        self.arrived_us: dict[_Arrival, int] = {}
        self.queues: defaultdict[tuple[int, int], list[tuple[_Arrival, int, int]]]
        self.queues = defaultdict(list)
        self.served: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.link_free_us: defaultdict[tuple[int, int], int] = defaultdict(int)
        self.joined_us: defaultdict[_Turn, list[int]] = defaultdict(list)
        self.reduced_us: dict[_Turn, int] = {}
        # Reductions among the devices of a rank, which programs do not list, by the op before.
        self.behind: defaultdict[tuple[int, Op], list[Collective]] = defaultdict(list)
        for group in lowered.collective_groups:
            for placed in group:
                rank = placed.collective.ranks[0]
                if placed.collective.is_within_rank:
                    op = lowered.ops[rank][placed.after[0]]
                    self.behind[rank, op].append(placed.collective)
        self.ring_free_us: defaultdict[tuple[int, ...], int] = defaultdict(int)
        self.ends_us = [0] * num_iterations
        self.began_us: int | None = None

    def run(self) -> list[int]:
        """Let ranks and links go on in turns until all ranks are through."""
        ranks = range(self.lowered.num_ranks)
        moved = True
        while moved:
            moved = any([self._advance(rank) for rank in ranks])
            moved |= any([self._serve(link) for link in list(self.queues)])
        if any(iteration < self.num_iterations for iteration, _ in self.places):
            raise RuntimeError(f"the ranks wait for each other at {self.places}")
        return [end - (self.began_us or 0) for end in self.ends_us]

    def _inputs(self, program: list[Instruction]) -> list[list[Value]]:
        """For each instruction the values that it waits for: those that are received here."""
        received = {i.moved.value for i in program if i.action == Action.RECV}
        reads = self.lowered.effects.reads
        return [
            [value for value in reads(i.compute) if value in received]
            if i.action == Action.COMPUTE
            else []
            for i in program
        ]

    def _advance(self, rank: int) -> bool:
        """Run a rank as far as possible; return True if it ran anything."""
        program, before = self.programs[rank], self.places[rank]
        iteration, place = before
        while iteration < self.num_iterations and self._execute(rank, iteration, place):
            place += 1
            if place == len(program):
                iteration, place = iteration + 1, 0
            self.places[rank] = (iteration, place)
        return self.places[rank] != before

    def _execute(self, rank: int, iteration: int, place: int) -> bool:
        """Run one instruction; return False if it waits for an event that is not known yet."""
        instruction, now = self.programs[rank][place], self.clock_us[rank]
        match instruction.action:
            case Action.RECV:
                in_time = self.overlap and place < self.ends[rank][0]
                arrival = _Arrival(iteration, instruction.moved.value, rank)
                self.posted_us[arrival] = 0 if in_time else now
                if instruction.moved.source == HOST:
                    self._send(iteration, instruction.moved, now)
            case Action.SEND:
                self._send(iteration, instruction.moved, now)
            case Action.SENT if not (self.overlap and place > self.ends[rank][1]):
                return self._wait_for_send(rank, iteration, instruction.moved)
            case Action.COLLECT:
                self._join(iteration, instruction.collected, now)
            case Action.COMPUTE:
                awaited = [_Arrival(iteration, v, rank) for v in self.inputs[rank][place]]
                return self._compute(rank, iteration, instruction.compute, awaited)
        return True

    def _send(self, iteration: int, transfer: Transfer, now: int) -> None:
        arrival = _Arrival(iteration, transfer.value, transfer.target)
        queue = self.queues[transfer.source, transfer.target]
        queue.append((arrival, now, transfer.duration_us))
        if transfer.target == HOST:
            self.posted_us[arrival] = now

    def _wait_for_send(self, rank: int, iteration: int, transfer: Transfer) -> bool:
        arrived = self.arrived_us.get(_Arrival(iteration, transfer.value, transfer.target))
        if arrived is None:
            return False
        self.clock_us[rank] = max(self.clock_us[rank], arrived)
        return True

    def _join(self, iteration: int, reduction: Collective, now: int) -> None:
        """The reduction starts with the last of its ranks, one at a time among the same ranks."""
        turn = _Turn(iteration, reduction.stage)
        self.joined_us[turn].append(now)
        if len(self.joined_us[turn]) == len(reduction.ranks):
            begins = max(*self.joined_us[turn], self.ring_free_us[reduction.ranks])
            ends = begins + reduction.duration_us
            self.reduced_us[turn] = self.ring_free_us[reduction.ranks] = ends

    def _compute(self, rank: int, iteration: int, op: Op, awaited: list[_Arrival]) -> bool:
        if not all(arrival in self.arrived_us for arrival in awaited):
            return False
        starts = max([self.clock_us[rank], *(self.arrived_us[a] for a in awaited)])
        if op.kind == OpKind.STEP and self._is_reduced(op.stage):
            turn = _Turn(iteration, op.stage)
            if turn not in self.reduced_us:
                return False
            starts = max(starts, self.reduced_us[turn])
        if self.began_us is None or starts < self.began_us:
            self.began_us = starts
        ends = starts + self.lowered.costs.stages[op.stage].duration_us[op.kind]
        self.clock_us[rank] = ends
        self.ends_us[iteration] = max(self.ends_us[iteration], ends)
        for reduction in self.behind.get((rank, op), ()):
            self._join(iteration, reduction, ends)
        return True

    def _is_reduced(self, stage: int) -> bool:
        return any(reduction.stage == stage for reduction in self.lowered.collectives)

    def _serve(self, link: tuple[int, int]) -> bool:
        """Run the transfers that a link can run now; return True if there were any."""
        queue, before = self.queues[link], self.served[link]
        while self.served[link] < len(queue):
            arrival, sent, took = queue[self.served[link]]
            if arrival not in self.posted_us:
                break
            if link[0] == HOST:
                taken = arrival._replace(
                    value=arrival.value._replace(kind=ValueKind.MOVED_OUT), rank=HOST
                )
                if taken not in self.arrived_us:
                    break
                sent = self.arrived_us[taken]
            begins = max(sent, self.posted_us[arrival], self.link_free_us[link])
            self.arrived_us[arrival] = self.link_free_us[link] = begins + took
            self.served[link] += 1
        return self.served[link] > before
