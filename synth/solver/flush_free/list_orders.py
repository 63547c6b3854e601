"""List scheduling without a flush, with versions and activations as one memory.

Each rank runs one op after the other, by a policy of its own: which of F, B and W it prefers among
those whose input has come, and how many micro-batches it lets in. An op must fit beside all that
the rank holds in its state (`stage_states`), stashed versions included. So an order may hold two
activations or one activation and a version, which a headroom less a number of versions cannot say.
A policy does not change, so that its order repeats after a while.

With vertical sync the stages after the first read the versions that the first one read. Such a
stage holds each of its older versions until the last micro-batch that reads it has ended there,
also those of micro-batches that have not come to it yet. Which versions the first stage will read
is not known before; orders either count on all that it may read, or on none (`_Run._stashed`), and
those that then exceed the limits are refused by the verifier.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

from synth.op_kinds import OpKind
from synth.schedule.ops import Op
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.stage_states import StageOp, StageStates, State
from synth.solver.instance.instance import BW, B, F, Instance, W
from synth.solver.tuning import FLUSH_FREE

_PREFERENCES = tuple(permutations((F, B, W)))


@dataclass(frozen=True)
class Policy:
    """The order of kinds that a rank prefers, and the most micro-batches in flight and waiting."""

    preference: Sequence[OpKind]
    most_in_flight: int
    most_waiting: int


@dataclass(frozen=True)
class ListOrder:
    """The programs of all ranks, and the time of a micro-batch in their second half."""

    programs: tuple[tuple[Op, ...], ...]
    us: float


def list_orders(
    flush_free: FlushFreeProblem, instance: Instance, rng: random.Random
) -> Iterator[ListOrder | None]:
    """Yield orders of random policies, without end; None where ranks wait for each other.

    Args:
        flush_free: the rule of versions.
        instance: the instance of its problem, on ranks that hold one stage each.
        rng: chooses the policies.
    """
    stages = [StageStates.walked(flush_free, instance, index) for (index,) in instance.held]
    is_vertical = flush_free.consistency == Consistency.VERTICAL
    while True:
        policies = [_random_policy(one, rng) for one in stages]
        is_cautious = rng.random() < FLUSH_FREE.cautious_share if is_vertical else None
        yield _Run(instance, stages, policies, is_cautious=is_cautious).order()


def _random_policy(stage: StageStates, rng: random.Random) -> Policy:
    most = max(1, stage.most)
    return Policy(
        rng.choice(_PREFERENCES),
        rng.randint(1, most),
        rng.choice((*FLUSH_FREE.most_waiting, most + stage.every)),
    )


class _Run:
    """The ranks of one order, from the first op to the last."""

    def __init__(
        self,
        instance: Instance,
        stages: list[StageStates],
        policies: list[Policy],
        *,
        is_cautious: bool | None,
    ) -> None:
        """Run nothing yet.

        Args:
            instance: the instance.
            stages: the states of the stage of each rank.
            policies: of each rank.
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
        """Run all ops, always the one that can start first; None if ranks wait for each other."""
        total = sum(3 * self.instance[copy].num_micro_batches for copy in self.copies)
        for _ in range(total):
            found = [one for rank in range(len(self.stages)) if (one := self._next(rank))]
            if not found:
                return None
            at_us, rank, op = min(found, key=lambda one: one[:2])
            self._run(at_us, rank, op)
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
        at_us, _, op = min(possible, key=lambda one: one[:2])
        return at_us, rank, op

    def _moves(self, rank: int, state: State) -> Iterator[StageOp]:
        """Yield the ops that fit on a rank beside its versions."""
        stage = self.stages[rank]
        if not self._follows(rank):
            yield from stage.moves(state, 0)
            return
        number, newest = self.done[rank][F], self.done[rank][W]
        is_there = number >= len(self.read) or self.read[number] <= newest
        now, after = (self._beside(stage, self._stashed(rank, k)) for k in (newest, newest + 1))
        yield from (op for op in now.moves(state, 0) if op.kind == B or (op.kind == F and is_there))
        yield from (op for op in after.moves(state, 0) if op.kind == W)

    def _follows(self, rank: int) -> bool:
        """True if a rank reads the versions that the first stage read."""
        return self.is_cautious is not None and rank != self.first

    @staticmethod
    def _beside(stage: StageStates, stashed: int) -> StageStates:
        return replace(stage, headroom=stage.headroom - stashed * stage.version_bytes)

    def _stashed(self, rank: int, newest: int) -> int:
        """Return the versions but the newest that a rank holds for micro-batches to be ended."""
        older = {version for version in self.read[self.done[rank][B] :] if version < newest}
        unknown = range(self.done[self.first][W], newest) if self.is_cautious else ()
        return len(older.union(unknown))

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

    def _run(self, at_us: int, rank: int, op: StageOp) -> None:
        copy, kind = self.instance[self.copies[rank]], op.kind
        end_us = at_us + op.us
        if kind == F and rank == self.first:
            self.read.append(self.done[rank][W])
        self.free_us[rank], self.state[rank] = end_us, op.after
        self.programs[rank].append(copy.op(kind, self.done[rank][kind]))
        self.done[rank][kind] += 1
        if kind == F and copy.below is not None:
            self._send(copy.below, F, end_us, copy.down_us)
        if kind == B and copy.above is not None:
            self._send(copy.above, B, end_us, self.instance[copy.above].up_us)
        elif kind == B:
            self.ends_us.append(end_us)

    def _send(self, copy: int, kind: OpKind, end_us: int, us: int) -> None:
        arrived = self.arrived[self.place[copy]][kind]
        arrived.append(max(end_us, arrived[-1] if arrived else 0) + us)


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
