"""Early forwarding in two directions: which micro-batches enter when, and a rank's next op.

If B takes twice as long as F, units in fixed slots (`concatenated_units.py`) leave bubbles where
they meet. Running later forwards there removes the bubbles and holds more activations. MixPipe
regulates the number K of micro-batches that each direction injects at the beginning; BitPipe calls
it early forwarding (arXiv 2410.19367, appendix B). Here both are list scheduling: a free rank runs
one of the ops whose input has arrived, chosen by a rule. Times are the papers' F = 1 and B = 2.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush

from synth.families._lib.family import Setting
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

F, BW = OpKind.F, OpKind.BW
_TIMES = {F: 1, BW: 2}


class First(Enum):
    """The stage that goes first."""

    LOWEST = auto()
    HIGHEST = auto()
    SECOND_HALF = auto()  # then the oldest micro-batch


class Alternation(Enum):
    """The property that a rank alternates from op to op of a kind, while it has both."""

    NONE = auto()
    COPIES = auto()
    HALVES = auto()  # of the stages


@dataclass(frozen=True)
class RunAheadRule:
    """The rule by which a free rank chooses its next op."""

    in_flight: int
    most_held: int
    in_turn: bool
    forwards: First
    backwards: First
    forward_turns: Alternation = Alternation.NONE
    backward_turns: Alternation = Alternation.NONE


@dataclass(frozen=True)
class RulePrograms:
    """A rule's programs, their makespan in unit times, and the most activations on a rank."""

    programs: list[list[Op]]
    makespan: int
    most_held: int


def list_schedule(
    setting: Setting, rule: RunAheadRule, most: int | None = None
) -> RulePrograms | None:
    """Run a rule; None if all ranks wait for memory, or the makespan is going to exceed `most`."""
    return _Run(setting, rule, most).run()


def _work_of_ranks(setting: Setting) -> list[int]:
    """Return the unit times that all ops of each rank take."""
    work = [0] * setting.num_ranks
    for replica, ranks in enumerate(setting.placement.ranks):
        count = len(_micro_batches(setting, replica))
        for rank in ranks:
            work[rank] += count * sum(_TIMES.values())
    return work


def _tails_of_ranks(setting: Setting) -> list[int]:
    """Return the unit times that pass at least from the end of each rank's last op to the end.

    That op is a backward, and those of all stages before its own follow one another.
    """
    tails = []
    for held in setting.placement.held:
        tails.append(_TIMES[BW] * min(stage for stage, _ in held))
    return tails


def _micro_batches(setting: Setting, replica: int) -> range:
    total = setting.num_micro_batches
    share = -(-total // len(setting.placement.ranks))
    return range(replica * share, min((replica + 1) * share, total))


class _Run:
    """All ranks in one event loop."""

    def __init__(self, setting: Setting, rule: RunAheadRule, most: int | None) -> None:
        self.ranks, self.rule = setting.placement.ranks, rule
        self.num_stages, num_ranks = setting.num_stages, setting.num_ranks
        self.programs: list[list[Op]] = [[] for _ in range(num_ranks)]
        self.most, self.work_left = most, _work_of_ranks(setting)
        self.tails = _tails_of_ranks(setting)
        self.ready: list[set[Op]] = [set() for _ in range(num_ranks)]
        self.last_turn: list[dict[tuple[OpKind, int], int]] = [{} for _ in range(num_ranks)]
        self.free_at, self.held, self.most_held = ([0] * num_ranks for _ in range(3))
        self.has_run_backward = [False] * num_ranks
        self.ended: list[tuple[int, int, Op]] = []
        self.in_flight = [0 for _ in self.ranks]
        self.waiting = [deque(_micro_batches(setting, own)) for own in range(len(self.ranks))]

    def run(self) -> RulePrograms | None:
        """Let every rank decide whenever an op has ended, until no event is left."""
        for replica in range(len(self.ranks)):
            self._inject(replica)
        now = 0
        while True:
            for rank in range(len(self.programs)):
                if not self.ready[rank] or self.free_at[rank] > now:
                    continue
                if self.most is not None:
                    least = now + self.work_left[rank] + self.tails[rank]
                    if least > self.most:
                        return None
                self._start(rank, now)
            if not self.ended:
                break
            now = self.ended[0][0]
            while self.ended and self.ended[0][0] == now:
                self._hand_on(heappop(self.ended)[2])
        if any(self.ready) or any(self.waiting):
            return None
        return RulePrograms(self.programs, max(self.free_at), max(self.most_held))

    def _inject(self, replica: int) -> None:
        """Start a copy's next micro-batches while more may be in flight."""
        while self.waiting[replica] and self.in_flight[replica] < self.rule.in_flight:
            microbatch = self.waiting[replica].popleft()
            self.ready[self.ranks[replica][0]].add(Op(F, 0, microbatch, replica))
            self.in_flight[replica] += 1

    def _hand_on(self, op: Op) -> None:
        """Enable the ops that depend on an op that has ended."""
        last = self.num_stages - 1
        if op.kind is F:
            kind, stage = (F, op.stage + 1) if op.stage < last else (BW, last)
        elif op.stage:
            kind, stage = BW, op.stage - 1
        else:
            self.in_flight[op.replica] -= 1
            self._inject(op.replica)
            return
        after = Op(kind, stage, op.microbatch, op.replica)
        self.ready[self.ranks[op.replica][stage]].add(after)

    def _start(self, rank: int, now: int) -> None:
        op = self._choose(rank)
        if op is None:
            return
        self.ready[rank].remove(op)
        if self._turns_of(op) is not Alternation.NONE:
            self.last_turn[rank][self._turn(op)] = len(self.programs[rank])
        self.programs[rank].append(op)
        if op.kind is F:
            self.held[rank] += 1
            self.most_held[rank] = max(self.most_held[rank], self.held[rank])
        else:
            self.held[rank] -= 1
            self.has_run_backward[rank] = True
        took = _TIMES[op.kind]
        self.free_at[rank] = end = now + took
        self.work_left[rank] -= took
        heappush(self.ended, (end, rank, op))

    def _choose(self, rank: int) -> Op | None:
        ready, room = self.ready[rank], self.held[rank] < self.rule.most_held
        if len(ready) == 1:
            (only,) = ready
            return only if room or only[0] is BW else None
        forwards = [op for op in ready if op[0] is F] if room else []
        backwards = [op for op in ready if op[0] is BW]
        if forwards and (not backwards or self._prefers_forward(rank)):
            return self._first(rank, forwards, self.rule.forwards)
        return self._first(rank, backwards, self.rule.backwards) if backwards else None

    def _first(self, rank: int, ops: list[Op], first: First) -> Op:
        return ops[0] if len(ops) == 1 else min(ops, key=self._key(rank, first))

    def _prefers_forward(self, rank: int) -> bool:
        if self.rule.in_turn:
            return bool(self.programs[rank]) and self.programs[rank][-1].kind == BW
        return self.has_run_backward[rank]

    def _key(self, rank: int, first: First) -> Callable[[Op], tuple[int, int, int, int]]:
        turns, half = self.last_turn[rank], self.num_stages // 2
        is_second_half, sign = first is First.SECOND_HALF, 1 if first is First.LOWEST else -1

        def key(op: Op) -> tuple[int, int, int, int]:
            has_to_wait = -1
            if self._turns_of(op) is not Alternation.NONE:
                has_to_wait = turns.get(self._turn(op), -1)
            _, stage, microbatch, replica = op
            if is_second_half:
                return has_to_wait, stage < half, microbatch, stage
            return has_to_wait, sign * stage, microbatch, replica

        return key

    def _turns_of(self, op: Op) -> Alternation:
        return self.rule.forward_turns if op.kind is F else self.rule.backward_turns

    def _turn(self, op: Op) -> tuple[OpKind, int]:
        """The property of an op that alternates."""
        if self._turns_of(op) == Alternation.HALVES:
            return op.kind, int(op.stage >= self.num_stages // 2)
        return op.kind, op.replica
