"""The problem as plain integers: durations, bytes and delays of each stage copy.

The memory usage of a rank is a sum over the ops that it has done: each op changes it by a lasting
delta, and peaks above the usage before it while it runs. `instance.memory_models` makes instances
of a problem.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from synth.objective import Objective
from synth.op_kinds import OpKind
from synth.solver.instance.stage_copy import StageCopy

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
SPLIT = (F, B, W)


class OpIndex(NamedTuple):
    """The k-th op of a kind on a stage copy that the context names."""

    kind: OpKind
    microbatch: int


# An op: its stage copy and its index there.
Node = tuple[int, OpIndex]


class Lifetime(NamedTuple):
    """Bytes of each micro-batch that exist from the end of one op to the end of another."""

    num_bytes: int
    made: tuple[int, OpKind]
    freed: tuple[int, OpKind]


@dataclass(frozen=True)
class Instance:
    """All stage copies of a problem by replica and stage, and the headroom of each rank.

    Attributes:
        headroom_bytes: by rank, the cap less the static bytes, None without a cap.
        lifetimes: the values whose bytes the deltas add up, each on the rank that makes it.
    """

    copies: tuple[StageCopy, ...]
    headroom_bytes: tuple[int | None, ...]
    lifetimes: tuple[Lifetime, ...] = ()

    def __len__(self) -> int:
        return len(self.copies)

    def __getitem__(self, copy: int) -> StageCopy:
        return self.copies[copy]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.headroom_bytes)

    @cached_property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """The copies of each rank by stage and replica, which is the order of their STEPs."""
        of_rank: list[list[int]] = [[] for _ in self.headroom_bytes]
        for stage, replica in sorted(self.index):
            copy = self.index[stage, replica]
            of_rank[self.copies[copy].rank].append(copy)
        return tuple(map(tuple, of_rank))

    @cached_property
    def index(self) -> dict[tuple[int, int], int]:
        """The stage copy of a (stage, replica)."""
        return {(copy.stage, copy.replica): i for i, copy in enumerate(self.copies)}

    @cached_property
    def num_ops(self) -> int:
        """F, B and W of all stage copies."""
        return 3 * sum(copy.num_micro_batches for copy in self.copies)

    def with_again(self, again_us: Mapping[int, int]) -> "Instance":
        """Return the instance with times of recomputation that some stages run by itself."""
        copies = (copy._replace(again_us=again_us.get(copy.stage, 0)) for copy in self.copies)
        return replace(self, copies=tuple(copies))

    def headroom_of(self, copy: int) -> int | None:
        """The headroom of a stage copy's rank in bytes; None without a cap."""
        return self.headroom_bytes[self.copies[copy].rank]

    @cached_property
    def reductions(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """By set of ranks, the stages whose gradients these ranks reduce, one after the other."""
        ranks_of: dict[int, set[int]] = {}
        for copy in self.copies:
            if copy.reduce_us > 0:
                ranks_of.setdefault(copy.stage, set()).add(copy.rank)
        groups: dict[tuple[int, ...], tuple[int, ...]] = {}
        for stage, ranks in ranks_of.items():
            among = tuple(sorted(ranks))
            groups[among] = (*groups.get(among, ()), stage)
        return groups

    def chains(self, rank: int) -> list[tuple[int, ...]]:
        """Return a rank's copies by replica, in forward order; a micro-batch passes one chain."""
        held = self.held[rank]
        replicas = sorted({self.copies[c].replica for c in held})
        return [tuple(c for c in held if self.copies[c].replica == r) for r in replicas]

    def copies_of(self, stage: int) -> list[int]:
        """The stage copies of a stage."""
        return [index for index, copy in enumerate(self.copies) if copy.stage == stage]

    def step_us(self, rank: int) -> int:
        """Return the duration of all STEPs of a rank, which come last."""
        return sum(self.copies[c].duration_us[STEP] for c in self.held[rank])

    @property
    def holds_several(self) -> bool:
        """True if some rank holds more than one stage copy."""
        return any(len(held) > 1 for held in self.held)

    def is_alone(self, copy: int) -> bool:
        """Return True if a copy is the only one on its rank."""
        return len(self.held[self.copies[copy].rank]) == 1

    def op_indices(self, copy: int) -> Iterator[OpIndex]:
        """Iterate over all ops of a copy, BW as B and W."""
        passes = range(self.copies[copy].num_micro_batches)
        return (OpIndex(kind, k) for kind in SPLIT for k in passes)

    # Times between stage copies, if no op waits

    def chain_above(self, copy: int) -> Iterator[int]:
        """Yield the copies before this one, nearest first."""
        above = self.copies[copy].above
        while above is not None:
            yield above
            above = self.copies[above].above

    @cached_property
    def head_us(self) -> tuple[int, ...]:
        """The earliest start of the first F of each copy (its head)."""
        heads: list[int] = []
        for copy in self.copies:
            above = copy.above
            heads.append(0 if above is None else heads[above] + self.step_down_us(above))
        return tuple(heads)

    @cached_property
    def slowest_f_us(self) -> tuple[int, ...]:
        """The longest F or transfer of F's on the way to each copy, its own F included.

        F k cannot start sooner than k times that after F 0.
        """
        slowest: list[int] = []
        for copy in self.copies:
            own_us = copy.duration_us[F]
            if copy.above is not None:
                above = self.copies[copy.above]
                own_us = max(own_us, slowest[copy.above], above.down_apart_us)
            slowest.append(own_us)
        return tuple(slowest)

    def step_down_us(self, copy: int) -> int:
        """Return the time from the start of F to the earliest start of F on the next copy."""
        return self.copies[copy].duration_us[F] + self.copies[copy].down_us

    @cached_property
    def round_trip_us(self) -> tuple[int, ...]:
        """For each copy, the least time from the end of F to the start of B of a micro-batch."""
        trips = [0] * len(self.copies)
        for index in reversed(range(len(self.copies))):
            copy = self.copies[index]
            if copy.below is not None:
                below = self.copies[copy.below].duration_us
                ways = copy.down_us + copy.up_us
                trips[index] = ways + below[F] + trips[copy.below] + below[B]
        return tuple(trips)

    def way_down_us(self, above: int, copy: int) -> int:
        """The least time from the end of F on `above` to the start of F on `copy`, below it."""
        return self.head_us[copy] - self.head_us[above] - self.copies[above].duration_us[F]

    def way_up_us(self, copy: int, above: int) -> int:
        """The least time from the end of B on `stage copy` to the start of B on `above`."""
        return next(way_us for other, way_us in self.ways_up_us(copy) if other == above)

    def ways_up_us(self, copy: int) -> Iterator[tuple[int, int]]:
        """Yield the copies before this one, nearest first, each with `way_up_us` to it."""
        way_us = 0
        for above in self.chain_above(copy):
            way_us += self.copies[above].up_us
            yield above, way_us
            way_us += self.copies[above].duration_us[B]

    def slowest_down_us(self, above: int, copy: int) -> int:
        """Return the slowest transfer of an activation from `above` to `copy`, below it."""
        return max(self.copies[hop].down_apart_us for hop in self._hops(above, copy))

    def slowest_up_us(self, copy: int, above: int) -> int:
        """Return the slowest transfer of a gradient from `copy` to `above`."""
        return max(self.copies[hop].up_apart_us for hop in self._hops(above, copy))

    def _hops(self, above: int, copy: int) -> Iterator[int]:
        """Yield the copies from `above` to the one before `copy`, nearest to it first."""
        for other in self.chain_above(copy):
            yield other
            if other == above:
                return

    @cached_property
    def slowest_below_us(self) -> tuple[int, ...]:
        """The slowest transfer of each copy's activations and gradients, all those below it."""
        slowest = [0] * len(self.copies)
        for index in reversed(range(len(self.copies))):
            copy = self.copies[index]
            if copy.below is not None:
                slowest[index] = max(copy.down_apart_us, copy.up_apart_us, slowest[copy.below])
        return tuple(slowest)

    @cached_property
    def origins_us(self) -> tuple[int, ...] | None:
        """The start of each rank, if it is the same in every schedule, else None.

        It is with one replica where the first stages of the ranks are, in some order, stages 0, 1,
        2, …: then F of micro-batch 0 of these is the first op of each rank, and nothing delays it.
        """
        firsts = [held[0] for held in self.held]
        if any(copy.replica for copy in self.copies) or max(firsts) >= self.num_ranks:
            return None
        return tuple(self.head_us[first] for first in firsts)

    def longest_us(self, objective: Objective, value_us: int) -> int:
        """Return the longest makespan within a value, or the longest period if only that counts.

        No period is shorter than the largest work of a rank.
        """
        if not objective.is_sum:
            return value_us
        least_us = max(self._least_work_us(rank) for rank in range(self.num_ranks))
        return value_us - objective.periods * least_us

    def _least_work_us(self, rank: int) -> int:
        """Return the work of a rank, with B and W fused where that is shorter."""
        work_us = self.step_us(rank)
        for copy in (self.copies[index] for index in self.held[rank]):
            times = copy.duration_us
            backward_us = min(times[B] + times[W], times[BW])
            work_us += copy.num_micro_batches * (times[F] + backward_us)
        return work_us

    def shortest_lifetime_us(self, lifetime: Lifetime) -> int:
        """Return the least time from the end of a value's maker to the end of its last reader."""
        (made, made_by), (freed, freed_by) = lifetime.made, lifetime.freed
        durations = self.copies[freed].duration_us
        if made_by == F and freed_by == F:
            return self.way_down_us(made, freed) + durations[F]
        if made_by == F:
            way_us = 0 if made == freed else self.way_down_us(made, freed) + durations[F]
            way_us += self.round_trip_us[freed] + durations[B]
        else:
            way_us = 0 if made == freed else self.way_up_us(made, freed) + durations[B]
        return way_us + (durations[W] if freed_by == W else 0)

    # Memory

    def allows(self, copy: int, kind: OpKind, usage_bytes: int) -> bool:
        """Return True if an op fits on top of its rank's usage."""
        headroom = self.headroom_of(copy)
        return (
            headroom is None or usage_bytes + self.copies[copy].peak_above_bytes[kind] <= headroom
        )

    def most_forwards(self, copy: int) -> int:
        """Return the most forwards of a copy that fit before its first backward, at least one."""
        headroom = self.headroom_in_forwards(copy)
        count = self.copies[copy].num_micro_batches
        return count if headroom is None else min(count, headroom)

    def headroom_in_forwards(self, copy: int) -> int | None:
        """Return the same for any number of micro-batches; None if memory does not limit it."""
        one, headroom = self.copies[copy], self.headroom_of(copy)
        if headroom is None or one.delta_bytes[F] <= 0:
            return None
        most = self.most_in_flight(copy)
        return _forwards_in(one, headroom) if most is None else most

    def most_in_flight(self, copy: int) -> int | None:
        """Return the most micro-batches of a copy that can be in flight: F done and B not.

        None if the deltas alone allow no more. One may always be in flight: where that does not
        fit, nothing does.
        """
        one, headroom = self.copies[copy], self.headroom_of(copy)
        if headroom is None or one.beside_bytes is None or one.delta_bytes[F] <= 0:
            return None
        most = max(1, (headroom - one.beside_bytes) // one.delta_bytes[F])
        return most if most < _forwards_in(one, headroom) else None


def _forwards_in(copy: StageCopy, headroom: int) -> int:
    """Return the most forwards that the deltas allow before the first backward, at least one."""
    return 1 + max(0, headroom - copy.peak_above_bytes[F]) // copy.delta_bytes[F]
