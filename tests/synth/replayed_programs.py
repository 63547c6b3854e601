"""Times of a lowered schedule by running its programs, rank by rank, without its graph.

Each rank goes through its instructions. RECV posts a receive, COMPUTE waits for what it reads, SENT
for a transfer and COLLECTED for a collective. A transfer begins when its value is at the source,
its receive is posted, and the one before it on the link is over.
The host takes all that comes, and keeps weights.
"""

from collections import defaultdict

from synth.costs.costs import HOST
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Action, Lowered
from synth.schedule.lowering.programs import Instruction, Transfer
from synth.schedule.ops import Op, Value, ValueKind
from synth.schedule.simulate import DeadlockError, simulate


class ReplayedPrograms:
    """The start of each op in µs; `starts` lacks ops that wait forever."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.starts: dict[Op, int] = {}
        ranks = range(lowered.num_ranks)
        self.at_us = [0 for _ in ranks]
        self.place = [0 for _ in ranks]
        # The last one, −1, is the host's.
        self.here: list[dict[Value, int]] = [{} for _ in range(lowered.num_ranks + 1)]
        self.posted: dict[Transfer, int] = {}
        self.arrived: dict[Transfer, int] = {}
        self.held = {
            one.moved: one.held
            for rank in ranks
            for one in lowered.programs[rank]
            if one.action == Action.SEND
        }
        for transfer in lowered.transfers:
            kind = transfer.value.kind
            if transfer.source == HOST:
                out = transfer.value._replace(kind=ValueKind.MOVED_OUT)
                left = out if kind == ValueKind.MOVED_BACK else transfer.value
                self.held[transfer] = None if kind == ValueKind.WEIGHTS else left
        self.links: defaultdict[tuple[int, int], list[Transfer]] = defaultdict(list)
        for transfer in lowered.transfers:
            self.links[transfer.source, transfer.target].append(transfer)
        self.calls: defaultdict[object, dict[int, int]] = defaultdict(dict)
        self.collected: dict[object, int] = {}
        self._run()

    def _run(self) -> None:
        is_moving = True
        while is_moving:
            is_moving = any([self._advance(rank) for rank in range(self.lowered.num_ranks)])
            is_moving |= self._transfer() | self._collect()

    def _advance(self, rank: int) -> bool:
        program, began = self.lowered.programs[rank], self.place[rank]
        while self.place[rank] < len(program) and self._do(rank, program[self.place[rank]]):
            self.place[rank] += 1
        return self.place[rank] > began

    def _do(self, rank: int, one: Instruction) -> bool:
        now = self.at_us[rank]
        if one.action == Action.RECV or (one.action == Action.SEND and one.moved.target == HOST):
            self.posted[one.moved] = now
        elif one.action == Action.SENT:
            if one.moved not in self.arrived:
                return False
            self.at_us[rank] = max(now, self.arrived[one.moved])
        elif one.action == Action.COLLECT:
            self.calls[one.collected][rank] = now
        elif one.action == Action.COLLECTED:
            if one.collected not in self.collected:
                return False
            self.at_us[rank] = max(now, self.collected[one.collected])
        elif one.action == Action.COMPUTE:
            return self._compute(rank, one.compute)
        return True

    def _compute(self, rank: int, op: Op) -> bool:
        """Run an op if all that it reads is here; a gradient of another rank's copy is not read."""
        here, now = self.here[rank], self.at_us[rank]
        for value in self.lowered.effects.reads(op):
            if value not in here:
                if value.kind == "wgrad":
                    continue
                return False
            now = max(now, here[value])
        if op.kind == OpKind.STEP:
            own = [c for c in self.lowered.collectives if c.stage == op.stage and rank in c.ranks]
            ends = [self.collected.get(c) for c in own if c.kind != "all-gather"]
            leaving = [one for one in self.lowered.transfers if one.target == HOST]
            sums = [one for one in leaving if one.value[:2] == (ValueKind.GRAD_ACC, op.stage)]
            ends += [self.arrived.get(one) for one in sums]
            if None in ends:
                return False
            now = max([now, *(end for end in ends if end is not None)])
        self.starts[op] = now
        first = self.lowered.first_node[rank]
        index = self.lowered.ops[rank].index(op)
        self.at_us[rank] = now + self.lowered.durations_us[first + index]
        for value in self.lowered.effects.makes(op):
            here[value] = self.at_us[rank]
        return True

    def _transfer(self) -> bool:
        is_moving = False
        for transfers in self.links.values():
            free_us = 0
            for one in transfers:
                if one not in self.arrived:
                    held = self.held[one]
                    there = 0 if held is None else self.here[one.source].get(held)
                    if there is None or one not in self.posted:
                        break
                    begin = max(there, free_us, self.posted[one])
                    self.arrived[one] = begin + one.duration_us
                    self.here[one.target][one.value] = self.arrived[one]
                    is_moving = True
                free_us = self.arrived[one]
        return is_moving

    def _collect(self) -> bool:
        is_moving = False
        free_us: dict[tuple[int, ...], int] = {}
        for one in self.lowered.collectives:
            if one in self.collected:
                free_us[one.ranks] = self.collected[one]
                continue
            if len(self.calls[one]) < len(one.ranks) or free_us.get(one.ranks, 0) < 0:
                free_us[one.ranks] = -1  # those behind it wait too
                continue
            begin = max(free_us.get(one.ranks, 0), *self.calls[one].values())
            free_us[one.ranks] = self.collected[one] = begin + one.duration_us
            is_moving = True
            for rank in one.ranks if one.kind == "all-gather" else ():
                for program_op in self.lowered.ops[rank]:
                    is_its = program_op.kind == OpKind.UNSHARD and program_op.stage == one.stage
                    if is_its and program_op.microbatch == one.number:
                        value = Value("weights", *program_op[1:])  # type: ignore[arg-type]
                        self.here[rank][value] = self.collected[one]
        return is_moving


def check_start_times(lowered: Lowered) -> None:
    """Check that the simulator starts ops when the replay does, or both run into a deadlock."""
    replayed = ReplayedPrograms(lowered).starts
    ops = [op for program in lowered.ops for op in program]
    try:
        timeline = simulate(lowered)
    except DeadlockError:
        assert len(replayed) < len(ops)
    else:
        assert [replayed[op] for op in ops] == timeline.start_us[: len(ops)]
