"""List scheduling without a flush, with versions and activations as one memory.

Each rank runs one op after the other, by a policy of its own: which of F, B and W it prefers among
those whose input has come or comes soon, how long it waits for one that it prefers, and how many
micro-batches it lets in. An op must fit beside all that the rank holds in its state
(`stage_states`), stashed versions included. So an order may hold two activations or one activation
and a version, which a headroom less a number of versions cannot say. A policy does not change, so
that its order repeats after a while.

With vertical sync the stages after the first read the versions that the first one read. Such a
stage holds each of its older versions until the last micro-batch that reads it has ended there,
also those of micro-batches that have not come to it yet. Which versions the first stage will read
is not known before; orders either count on all that it may read, or on none (`_Run._stashed`), and
those that then exceed a limit are dropped.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, permutations, takewhile

from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.stage_states import StageOp, StageStates, State
from synth.solver.instance.instance import BW, B, F, Instance, W
from synth.solver.tuning import FLUSH_FREE

_PREFERENCES = tuple(permutations((F, B, W)))


@dataclass(frozen=True)
class Policy:
    """The policy of a rank.

    Attributes:
        preference: the kinds of ops, the preferred one first.
        most_in_flight: the most micro-batches in flight.
        most_waiting: the most that wait for their W before another F or B.
        patience_us: the longest that the rank is idle for an op that it prefers to one that is
            ready.
    """

    preference: Sequence[OpKind]
    most_in_flight: int
    most_waiting: int
    patience_us: float = 0.0


@dataclass(frozen=True)
class ListOrder:
    """The programs of all ranks, and the time of a micro-batch in their second half."""

    programs: tuple[tuple[Op, ...], ...]
    us: float


def list_orders(
    flush_free: FlushFreeProblem, instance: Instance, rng: random.Random
) -> Iterator[ListOrder | None]:
    """Yield orders of random policies, without end; None where a policy makes none.

    Args:
        instance: the instance of its problem, on ranks that hold one stage each.
    """
    stages = [
        _KnownMoves(StageStates.walked(flush_free, instance, index)) for (index,) in instance.held
    ]
    is_vertical = flush_free.consistency == Consistency.VERTICAL
    while True:
        policies = [_random_policy(one.stage, rng) for one in stages]
        is_cautious = rng.random() < FLUSH_FREE.cautious_share if is_vertical else None
        yield _Run(instance, stages, policies, is_cautious=is_cautious).order()


def _random_policy(stage: StageStates, rng: random.Random) -> Policy:
    most, times = max(1, stage.most), stage.copy.duration_us
    is_patient = rng.random() < FLUSH_FREE.patient_share
    return Policy(
        rng.choice(_PREFERENCES),
        rng.randint(1, most),
        rng.choice((*FLUSH_FREE.most_waiting, most + stage.every)),
        rng.uniform(0, max(times[kind] for kind in (F, B, W))) if is_patient else 0.0,
    )


class _KnownMoves:
    """The moves of a stage beside some stashed versions, each computed once."""

    def __init__(self, stage: StageStates) -> None:
        self.stage = stage
        self._known: dict[tuple[State, int], tuple[StageOp, ...]] = {}

    def beside(self, state: State, stashed: int = 0) -> tuple[StageOp, ...]:
        """Return the ops that are possible in a state, with versions that it does not count."""
        found = self._known.get((state, stashed))
        if found is None:
            headroom = self.stage.headroom - stashed * self.stage.version_bytes
            found = tuple(replace(self.stage, headroom=headroom).moves(state, 0))
            self._known[state, stashed] = found
        return found


class _Run:
    """The ranks of one order, from the first op to the last."""

    def __init__(
        self,
        instance: Instance,
        stages: list[_KnownMoves],
        policies: list[Policy],
        *,
        is_cautious: bool | None,
    ) -> None:
        """Run nothing yet.

        Args:
            is_cautious: with vertical sync, count on all versions that the first stage may read;
                None: each stage reads its own.
        """
        self.is_cautious = is_cautious
        self.instance, self.stages, self.policies = instance, stages, policies
        self.copies = [index for (index,) in instance.held]
        self.place = {copy: rank for rank, copy in enumerate(self.copies)}
        self.first = next(r for r, c in enumerate(self.copies) if instance[c].above is None)
        # With vertical sync, the version of each micro-batch that the first stage has begun.
        self.read: list[int] = []
        self.state = [State((), 0, 0)] * len(stages)
        self.free_us = [0] * len(stages)
        self.done = [dict.fromkeys((F, B, W), 0) for _ in stages]
        # When the input of each forward and backward is there, as far as it is known.
        self.arrived: list[dict[OpKind, list[int]]] = [{F: [], B: []} for _ in stages]
        self.programs: list[list[Op]] = [[] for _ in stages]
        self.ends_us: list[int] = []  # of backwards of the first stage

    def order(self) -> ListOrder | None:
        """Run all ops, always the one that can start first.

        Returns:
            None if ranks wait for each other, or exceed a limit with versions not counted on.
        """
        total = sum(3 * self.instance[copy].num_micro_batches for copy in self.copies)
        upcoming = [*map(self._next, range(len(self.stages)))]
        for _ in range(total):
            found = [one for one in upcoming if one is not None]
            if not found:
                return None
            at_us, rank, op = min(found, key=lambda one: one[:2])
            for other in self._run(at_us, rank, op):
                upcoming[other] = self._next(other)
        if not all(map(self._has_room, range(len(self.stages)))):
            return None
        half = len(self.ends_us) // 2
        us = (self.ends_us[-1] - self.ends_us[half]) / max(1, len(self.ends_us) - 1 - half)
        return ListOrder(tuple(map(tuple, self.programs)), us)

    def _next(self, rank: int) -> tuple[int, int, StageOp] | None:
        """Return when and what a rank runs next, by its policy; None: it waits for others."""
        state, policy = self.state[rank], self.policies[rank]
        possible = []
        for op in self._moves(rank, state):
            ready_us = self._ready_us(rank, op.kind)
            if ready_us is not None and not self._is_held_back(op, state, policy):
                start_us = max(self.free_us[rank], ready_us)
                possible.append((start_us, policy.preference.index(op.kind), op))
        if not possible:
            return None
        latest_us = min(start_us for start_us, *_ in possible) + policy.patience_us
        soon = (one for one in possible if one[0] <= latest_us)
        at_us, _, op = min(
            soon, key=lambda one: (one[1], one[0]) if policy.patience_us else one[:2]
        )
        return at_us, rank, op

    def _moves(self, rank: int, state: State) -> Iterator[StageOp]:
        """Yield the ops that fit on a rank beside its versions."""
        moves = self.stages[rank]
        if not self._follows(rank):
            yield from moves.beside(state)
            return
        number, newest = self.done[rank][F], self.done[rank][W]
        is_there = number >= len(self.read) or self.read[number] <= newest
        now, after = (moves.beside(state, self._stashed(rank, k)) for k in (newest, newest + 1))
        yield from (op for op in now if op.kind == B or (op.kind == F and is_there))
        yield from (op for op in after if op.kind == W)

    def _follows(self, rank: int) -> bool:
        """True if a rank reads the versions that the first stage read."""
        return self.is_cautious is not None and rank != self.first

    def _stashed(self, rank: int, newest: int) -> int:
        """Return the versions but the newest that a rank holds for micro-batches to be ended."""
        unknown = range(self.done[self.first][W], newest) if self.is_cautious else ()
        return len(self._older(self.done[rank][B], newest).union(unknown))

    def _older(self, microbatch: int, newest: int) -> set[int]:
        """Return the versions before the newest that a micro-batch or later ones read."""
        return {*takewhile(newest.__gt__, islice(self.read, microbatch, None))}

    def _has_room(self, rank: int) -> bool:
        """True if the ops of a rank fit beside all versions that the first stage has read."""
        if self.is_cautious is not False or not self._follows(rank):
            return True
        state, done = State((), 0, 0), dict.fromkeys((F, B, W), 0)
        for op in self.programs[rank]:
            older = self._older(done[B], done[W] + (op.kind == W))
            moves = self.stages[rank].beside(state, len(older))
            after = next((one.after for one in moves if one.kind == op.kind), None)
            if after is None:
                return False
            state = after
            done[op.kind] += 1
        return True

    def _is_held_back(self, op: StageOp, state: State, policy: Policy) -> bool:
        if op.kind == F:
            is_full = len(state.in_flight) >= policy.most_in_flight
            return is_full or state.waiting >= policy.most_waiting
        return op.kind == B and state.waiting >= policy.most_waiting

    def _ready_us(self, rank: int, kind: OpKind) -> int | None:
        """Return when the input of the next op of a kind comes; None: not known, or none left."""
        copy, number = self.instance[self.copies[rank]], self.done[rank][kind]
        if number == copy.num_micro_batches:
            return None
        if kind == W or (kind == F and copy.above is None) or (kind == B and copy.below is None):
            return 0
        arrived = self.arrived[rank][kind]
        return arrived[number] if number < len(arrived) else None

    def _run(self, at_us: int, rank: int, op: StageOp) -> Iterable[int]:
        """Run an op, and return the ranks whose next op may be another one now."""
        copy, kind = self.instance[self.copies[rank]], op.kind
        end_us = at_us + op.us
        if kind == F and rank == self.first:
            self.read.append(self.done[rank][W])
        self.free_us[rank], self.state[rank] = end_us, op.after
        self.programs[rank].append(copy.op(kind, self.done[rank][kind]))
        self.done[rank][kind] += 1
        changed = {rank}
        if kind == F and copy.below is not None:
            changed.add(self._send(copy.below, F, end_us, copy.down_us))
        if kind == B and copy.above is not None:
            changed.add(self._send(copy.above, B, end_us, self.instance[copy.above].up_us))
        elif kind == B:
            self.ends_us.append(end_us)
        is_read_by_all = rank == self.first and self.is_cautious is not None
        return range(len(self.stages)) if is_read_by_all else changed

    def _send(self, copy: int, kind: OpKind, end_us: int, us: int) -> int:
        """Send a value to a copy, and return its rank."""
        rank = self.place[copy]
        arrived = self.arrived[rank][kind]
        arrived.append(max(end_us, arrived[-1] if arrived else 0) + us)
        return rank


def fused(programs: Sequence[Sequence[Op]]) -> tuple[tuple[Op, ...], ...]:
    """Return programs with BW for each B that its W follows."""
    return tuple(tuple(_fused(program)) for program in programs)


def _fused(program: Sequence[Op]) -> Iterator[Op]:
    pairs = {one for one, after in pairwise(program) if one.kind == B and _ends(one) == after}
    dropped = {_ends(one) for one in pairs}
    for op in program:
        if op not in dropped:
            yield op._replace(kind=BW) if op in pairs else op


def _ends(backward: Op) -> Op:
    return backward._replace(kind=W)


def num_tried(num_ops: int) -> int:
    """Return the number of policies that are tried for orders of some ops."""
    return max(FLUSH_FREE.fewest_policies, FLUSH_FREE.policy_ops // num_ops)
