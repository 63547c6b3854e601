r"""Lowering: from an order of compute ops to each rank's full program and the op DAG.

Everything that reads a schedule (solver, simulator, verifier, executor) reads this form, so they
cannot disagree about what it means. One transfer, with the default buffering (1, 2):

    sender    | op k, makes v | op k+1        | op k+2        | (1) op k+3
              |               \ SEND v                       ^ SENT v: waits, then frees v
    transfer  |                   [== v ==]
    receiver  | ...          | (2) op n−1           | op n, reads v
                             ^ RECV v: allocates the buffer, posts the receive

A transfer starts when it is sent, its receive is posted (2) and the link is free; links serve
transfers in the order in which they were made, and receives are posted in that same order, as
in-order communicators (NCCL) demand. (1) and (2) sit at fixed places of the programs, so a rank's
memory follows from the order of its ops alone, never from timing.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from synth.costs import Costs
from synth.kinds import OpKind
from synth.schedule.effects import Effects
from synth.schedule.model import Schedule
from synth.schedule.ops import Op, Value


class Transfer(NamedTuple):
    """A value's way from one rank to another; `duration_us` includes the latency."""

    value: Value
    source: int
    target: int
    num_bytes: int
    duration_us: int

    def __str__(self) -> str:
        """For people: `act(0, 3) from rank 0 to rank 1`."""
        return f"{self.value} from rank {self.source} to rank {self.target}"


class Action(StrEnum):
    """What an instruction does."""

    RECV = "RECV"
    SENT = "SENT"
    COMPUTE = "COMPUTE"
    SEND = "SEND"


@dataclass(slots=True)
class Instruction:
    """One step of a rank's full program.

    RECV allocates and posts a receive, COMPUTE first waits for the receives of what it reads, SEND
    starts a send, SENT waits for it. `frees` are the values whose last use on this rank this was.
    """

    action: Action
    op: Op | None = None
    transfer: Transfer | None = None
    frees: list[Value] = field(default_factory=list)

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

    def __str__(self) -> str:
        """For people and error messages."""
        if self.action == Action.COMPUTE:
            return str(self.op)
        return f"{self.action} {self.transfer}"


@dataclass(frozen=True)
class Lowered:
    """A schedule on its costs, as programs and as a DAG.

    The DAG has one node per compute op (rank by rank, in program order) and then one per transfer.
    `predecessors[n]` are the nodes that must end before node n starts. `reads[rank][place]` and
    `makes[rank][place]` are the values of the op `ops[rank][place]`.
    """

    schedule: Schedule
    costs: Costs
    effects: Effects
    ops: list[tuple[Op, ...]]
    reads: list[list[list[Value]]]
    makes: list[list[list[Value]]]
    programs: list[list[Instruction]]
    transfers: list[Transfer]
    durations_us: list[int]
    predecessors: list[list[int]]
    first_node: list[int]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.programs)

    def node_name(self, node: int) -> str:
        """Name a node for people: the op and its rank, or the transfer."""
        if node >= self.first_node[-1]:
            return f"transfer of {self.transfers[node - self.first_node[-1]]}"
        rank = max(r for r in range(self.num_ranks) if self.first_node[r] <= node)
        return f"{self.ops[rank][node - self.first_node[rank]]} on rank {rank}"


def lower(schedule: Schedule, costs: Costs, *, synchronous_step: bool = False) -> Lowered:
    """Insert what the order implies: STEPs at the end, transfers, waits, and the death of values.

    Args:
        schedule: any schedule whose ops exist; `verify` says whether it is a good one.
        costs: as many stages as the placement has.
        synchronous_step: every STEP waits for all ranks (a global gradient norm), as training
            without optimizer post-validation does.
    """
    return _Lowering(schedule, costs, synchronous_step).run()


@dataclass(slots=True)
class _Route:
    """A transfer with its places: made by the op at `made`, first read at `read`."""

    transfer: Transfer
    made: int
    read: int
    post: int = 0
    wait: int = 0


class _Lowering:
    """The steps of `lower`, in the order in which they run."""

    def __init__(self, schedule: Schedule, costs: Costs, synchronous_step: bool) -> None:
        self.schedule = schedule
        self.costs = costs
        self.synchronous_step = synchronous_step
        self.effects = Effects(costs, schedule.num_micro_batches)
        self.ops = [self._with_steps(rank) for rank in range(schedule.num_ranks)]

    def run(self) -> Lowered:
        self._find_makers()
        self._find_routes()
        self._fix_posts_and_waits()
        nodes = self._build_graph()
        return Lowered(
            self.schedule,
            self.costs,
            self.effects,
            self.ops,
            self.reads,
            self.makes,
            [self._program(rank) for rank in range(len(self.ops))],
            [route.transfer for route in self.routes],
            *nodes,
            self.first_node,
        )

    def _with_steps(self, rank: int) -> tuple[Op, ...]:
        """A rank's ops, with the STEPs that it does not list itself at the end."""
        program = self.schedule.programs[rank]
        listed = {(op.stage, op.replica) for op in program if op.kind == OpKind.STEP}
        held = self.schedule.placement.held
        missing = [pair for pair in held[rank] if pair not in listed] if rank < len(held) else []
        return (*program, *(Op(OpKind.STEP, stage, 0, replica) for stage, replica in missing))

    def _find_makers(self) -> None:
        """Who makes each value, and who reads it: (rank, place) pairs."""
        self.maker: dict[Value, tuple[int, int]] = {}
        self.last_read: dict[tuple[Value, int], int] = {}
        self.first_read: dict[tuple[Value, int], int] = {}
        self.reads = [[self.effects.reads(op) for op in program] for program in self.ops]
        self.makes = [[self.effects.makes(op) for op in program] for program in self.ops]
        for rank, program in enumerate(self.ops):
            for place in range(len(program)):
                for value in self.makes[rank][place]:
                    self.maker[value] = (rank, place)
                for value in self.reads[rank][place]:
                    self.first_read.setdefault((value, rank), place)
                    self.last_read[value, rank] = place

    def _find_routes(self) -> None:
        """One transfer for every value read on a rank that did not make it, link by link."""
        by_link: defaultdict[tuple[int, int], list[_Route]] = defaultdict(list)
        for (value, target), read in self.first_read.items():
            if value not in self.maker:
                continue
            source, made = self.maker[value]
            if source != target:
                duration = self.costs.boundary_us(value.stage, source, target)
                size = self.effects.bytes_of(value)
                transfer = Transfer(value, source, target, size, duration)
                by_link[source, target].append(_Route(transfer, made, read))
        for routes in by_link.values():
            routes.sort(key=lambda route: (route.made, route.transfer.value))
        self.by_link = by_link
        self.routes = [route for routes in by_link.values() for route in routes]

    def _fix_posts_and_waits(self) -> None:
        """Receives are posted in link order, so one is posted early if a later one needs it."""
        buffering = self.schedule.buffering
        for routes in self.by_link.values():
            earliest = len(self.ops[routes[0].transfer.target])
            for route in reversed(routes):
                earliest = min(earliest, max(0, route.read - buffering.receive_ahead))
                route.post = earliest
                length = len(self.ops[route.transfer.source])
                route.wait = min(route.made + 1 + buffering.send_behind, length)

    def _build_graph(self) -> tuple[list[int], list[list[int]]]:
        """Durations and predecessors of all nodes; every edge is finish-to-start."""
        self.first_node = [0]
        for program in self.ops:
            self.first_node.append(self.first_node[-1] + len(program))
        first = self.first_node
        durations: list[int] = []
        preds: list[list[int]] = []
        for rank, program in enumerate(self.ops):
            for place, op in enumerate(program):
                durations.append(self.costs.stages[op.stage].duration_us[op.kind])
                before = [first[rank] + place - 1] if place else []
                for value in self.reads[rank][place]:
                    made = self.maker.get(value)
                    if made is not None and made[0] == rank and made[1] >= place:
                        before.append(first[rank] + made[1])
                preds.append(before)
        self._add_transfers(durations, preds)
        if self.synchronous_step:
            self._add_step_barrier(preds)
        return durations, preds

    def _add_transfers(self, durations: list[int], preds: list[list[int]]) -> None:
        first = self.first_node
        for routes in self.by_link.values():
            previous = -1
            for route in routes:
                node = len(durations)
                source, target = route.transfer.source, route.transfer.target
                before = [first[source] + route.made]
                if route.post:
                    before.append(first[target] + route.post - 1)
                if previous >= 0:
                    before.append(previous)
                durations.append(route.transfer.duration_us)
                preds.append(before)
                preds[first[target] + route.read].append(node)
                if route.wait < len(self.ops[source]):
                    preds[first[source] + route.wait].append(node)
                previous = node

    def _add_step_barrier(self, preds: list[list[int]]) -> None:
        steps, lasts = [], []
        for rank, program in enumerate(self.ops):
            places = [i for i, op in enumerate(program) if op.kind == OpKind.STEP]
            steps += [self.first_node[rank] + i for i in places]
            if places and places[0] > 0:
                lasts.append(self.first_node[rank] + places[0] - 1)
        for step in steps:
            preds[step].extend(last for last in lasts if last != step - 1)

    def _program(self, rank: int) -> list[Instruction]:
        """Weave a rank's receives, waits and sends between its ops, then mark the deaths."""
        posts: defaultdict[int, list[Transfer]] = defaultdict(list)
        waits: defaultdict[int, list[Transfer]] = defaultdict(list)
        sends: defaultdict[int, list[Transfer]] = defaultdict(list)
        for link, routes in self.by_link.items():
            for route in routes if rank in link else ():
                if route.transfer.target == rank:
                    posts[route.post].append(route.transfer)
                else:
                    sends[route.made].append(route.transfer)
                    waits[route.wait].append(route.transfer)
        program: list[Instruction] = []
        for place in range(len(self.ops[rank]) + 1):
            program += [Instruction(Action.RECV, transfer=t) for t in posts[place]]
            program += [Instruction(Action.SENT, transfer=t) for t in waits[place]]
            if place < len(self.ops[rank]):
                program.append(Instruction(Action.COMPUTE, op=self.ops[rank][place]))
                program += [Instruction(Action.SEND, transfer=t) for t in sends[place]]
        self._mark_deaths(rank, program)
        return program

    def _mark_deaths(self, rank: int, program: list[Instruction]) -> None:
        """A value dies after its last reader and its last SENT; one that nobody wants, at once."""
        death: dict[Value, int] = {}
        place = 0
        for index, instruction in enumerate(program):
            if instruction.action == Action.COMPUTE:
                for value in self.makes[rank][place]:
                    death[value] = index
                for value in self.reads[rank][place]:
                    death[value] = index
                place += 1
            else:
                death[instruction.moved.value] = index
        for value, index in death.items():
            program[index].frees.append(value)
