"""The problem as plain integers: durations, bytes and delays of each stage copy.

Memory is seen as a sum over the ops that a rank has done: each op changes the level by its change,
and needs so much above the level before it. `synth.solve.instance.memory_models` makes instances of
a problem.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from synth.kinds import OpKind
from synth.objective import Objective
from synth.schedule.ops import Op

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
SPLIT = (F, B, W)


class OpIndex(NamedTuple):
    """The op of a kind that a stage copy, named by the context, runs as its k-th."""

    kind: OpKind
    microbatch: int


# An op: its stage copy, and which of that stage copy's.
Node = tuple[int, OpIndex]


class StageCopy(NamedTuple):
    """One stage of one replica, on its rank, and the micro-batches that pass it.

    These are `num_micro_batches` from `first` on.
    `delta_bytes[kind]` is how an op changes its rank's level for good; BW's is B's and W's
    together. `peak_above_bytes[kind]` is how far memory is above the level before the op while it
    runs and right after it: boundary values that it reads and makes, and its workspace.

    `above` and `below` are the stage copies of the stages before and after, none at the ends;
    `down_us` is the transfer time of activations to `below`, `up_us` of gradients from it, 0 on one
    rank. `reduce_us` is the all-reduce of its gradients with those of its copies. `beside_bytes`:
    whenever most micro-batches are in flight, boundary buffers and values kept for W hold at least
    this much besides what F's keep; None: no such minimum is known.
    """

    rank: int
    stage: int
    replica: int
    first: int
    num_micro_batches: int
    duration_us: dict[OpKind, int]
    delta_bytes: dict[OpKind, int]
    peak_above_bytes: dict[OpKind, int]
    above: int | None
    below: int | None
    down_us: int
    up_us: int
    reduce_us: int
    beside_bytes: int | None = None

    @property
    def work_us(self) -> int:
        """F + B + W of one micro-batch."""
        return sum(self.duration_us[kind] for kind in SPLIT)

    def total_us(self, kind: OpKind) -> int:
        """All ops of a kind."""
        return self.num_micro_batches * self.duration_us[kind]

    @property
    def last(self) -> int:
        """The number of the last op of each kind."""
        return self.num_micro_batches - 1

    @property
    def gains_by_fusion(self) -> bool:
        """Whether BW is ever better than B with W right behind it, in time or in memory."""
        return fusible(self) != self

    def op(self, kind: OpKind, k: int) -> Op:
        """The k-th op of a kind."""
        return Op(kind, self.stage, 0 if kind == STEP else self.first + k, self.replica)


def fusible(copy: StageCopy) -> StageCopy:
    """B and W as cheap as BW allows, see `relaxed_for_fusion`."""
    durations, peak_above = copy.duration_us, copy.peak_above_bytes
    backward_us = min(durations[B], durations[BW])
    weight_us = min(durations[W], durations[BW] - backward_us)
    # At W the level already has B's change in it; at BW it has not.
    fused_peak_above = peak_above[BW] - copy.delta_bytes[B]
    return copy._replace(
        duration_us={**durations, B: backward_us, W: weight_us},
        peak_above_bytes={
            **peak_above,
            B: min(peak_above[B], peak_above[BW]),
            W: min(peak_above[W], fused_peak_above),
        },
    )


class Life(NamedTuple):
    """Bytes of each micro-batch that are there from the end of one op to the end of another."""

    num_bytes: int
    made: tuple[int, OpKind]
    freed: tuple[int, OpKind]


@dataclass(frozen=True)
class Instance:
    """All stage copies of a problem by replica and stage, and the headroom of each rank.

    `headroom_bytes[rank]` is the cap less the static bytes, None without a cap. `lives` are what
    the changes add up: each on the rank of the stage copy that makes it.
    """

    copies: tuple[StageCopy, ...]
    headroom_bytes: tuple[int | None, ...]
    lives: tuple[Life, ...] = ()

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
        """The stage copies of each rank, by stage and replica: the order of their STEPs."""
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

    def headroom_of(self, copy: int) -> int | None:
        """The room on a stage copy's rank."""
        return self.headroom_bytes[self.copies[copy].rank]

    @cached_property
    def reductions(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """For each set of ranks, the stages whose gradients they reduce, one after the other."""
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
        """A rank's stage copies by replica, in forward order: a micro-batch passes one of these."""
        held = self.held[rank]
        replicas = sorted({self.copies[c].replica for c in held})
        return [tuple(c for c in held if self.copies[c].replica == r) for r in replicas]

    def copies_of(self, stage: int) -> list[int]:
        """The stage copies of a stage."""
        return [index for index, copy in enumerate(self.copies) if copy.stage == stage]

    def step_us(self, rank: int) -> int:
        """All STEPs of a rank, one after the other at its end."""
        return sum(self.copies[c].duration_us[STEP] for c in self.held[rank])

    @property
    def holds_several(self) -> bool:
        """Whether some rank holds more than one stage copy."""
        return any(len(held) > 1 for held in self.held)

    def is_alone(self, copy: int) -> bool:
        """Whether a stage copy has its rank for itself."""
        return len(self.held[self.copies[copy].rank]) == 1

    def op_indices(self, copy: int) -> Iterator[OpIndex]:
        """All ops of a stage copy, BW as B and W."""
        passes = range(self.copies[copy].num_micro_batches)
        return (OpIndex(kind, k) for kind in SPLIT for k in passes)

    # Ways between stage copies, with nothing to wait for

    def chain_above(self, copy: int) -> Iterator[int]:
        """The stage copies before this one, nearest first."""
        above = self.copies[copy].above
        while above is not None:
            yield above
            above = self.copies[above].above

    @cached_property
    def head_us(self) -> tuple[int, ...]:
        """When the first F of each stage copy can start."""
        heads: list[int] = []
        for copy in self.copies:
            above = copy.above
            heads.append(0 if above is None else heads[above] + self.step_down_us(above))
        return tuple(heads)

    @cached_property
    def slowest_f_us(self) -> tuple[int, ...]:
        """The longest F of each copy and those above it: F k arrives k times that after F 0."""
        slowest: list[int] = []
        for copy in self.copies:
            above = 0 if copy.above is None else slowest[copy.above]
            slowest.append(max(above, copy.duration_us[F]))
        return tuple(slowest)

    def step_down_us(self, copy: int) -> int:
        """From the start of F to where the next stage copy can start its own."""
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
        way_us = 0
        for other in self.chain_above(copy):
            way_us += self.copies[other].up_us
            if other == above:
                break
            way_us += self.copies[other].duration_us[B]
        return way_us

    @cached_property
    def origins_us(self) -> tuple[int, ...] | None:
        """When each rank starts, where every schedule starts it then: else None.

        That is so with one replica where the first stages of the ranks are, in some order, stages
        0, 1, 2, …: then F of micro-batch 0 of these is the first op of each rank, and nothing
        delays it.
        """
        firsts = [held[0] for held in self.held]
        if any(copy.replica for copy in self.copies) or max(firsts) >= self.num_ranks:
            return None
        return tuple(self.head_us[first] for first in firsts)

    def longest_us(self, objective: Objective, value_us: int) -> int:
        """The most that the makespan can be within a value, or the period where only that counts.

        No period is shorter than the largest work of a rank.
        """
        if not objective.is_sum:
            return value_us
        least_us = max(self._least_work_us(rank) for rank in range(self.num_ranks))
        return value_us - objective.periods * least_us

    def _least_work_us(self, rank: int) -> int:
        """B and W fused where that is shorter."""
        work_us = self.step_us(rank)
        for copy in (self.copies[index] for index in self.held[rank]):
            times = copy.duration_us
            backward_us = min(times[B] + times[W], times[BW])
            work_us += copy.num_micro_batches * (times[F] + backward_us)
        return work_us

    def shortest_life_us(self, life: Life) -> int:
        """The least time from the end of the op that makes it to the end of that which frees it."""
        (made, made_by), (freed, freed_by) = life.made, life.freed
        durations = self.copies[freed].duration_us
        if made_by == F and freed_by == F:
            return self.way_down_us(made, freed) + durations[F]
        if made_by == F:
            way_us = 0 if made == freed else self.way_down_us(made, freed) + durations[F]
            way_us += self.round_trip_us[freed] + durations[B]
        else:
            way_us = 0 if made == freed else self.way_up_us(made, freed) + durations[B]
        return way_us + (durations[W] if freed_by == W else 0)

    @property
    def can_fuse_all(self) -> bool:
        """Whether the exact model has the choice of BW everywhere where BW gains."""
        copies = enumerate(self.copies)
        return all(self.is_alone(i) or not copy.gains_by_fusion for i, copy in copies)

    # Memory

    def allows(self, copy: int, kind: OpKind, usage_bytes: int) -> bool:
        """Whether an op fits on top of its rank's level."""
        headroom = self.headroom_of(copy)
        return (
            headroom is None or usage_bytes + self.copies[copy].peak_above_bytes[kind] <= headroom
        )

    def most_forwards(self, copy: int) -> int:
        """The most forwards of a copy that fit before its first backward, at least one."""
        headroom = self.headroom_in_forwards(copy)
        count = self.copies[copy].num_micro_batches
        return count if headroom is None else min(count, headroom)

    def headroom_in_forwards(self, copy: int) -> int | None:
        """The same, were there any number of micro-batches; None: memory does not limit it."""
        one, headroom = self.copies[copy], self.headroom_of(copy)
        if headroom is None or one.delta_bytes[F] <= 0:
            return None
        most = self.most_in_flight(copy)
        return _forwards_in(one, headroom) if most is None else most

    def most_in_flight(self, copy: int) -> int | None:
        """Return the most micro-batches of a stage copy that can be in flight: F done and B not.

        None: the levels alone allow no more. One may always be in flight: where that does not fit,
        nothing does.
        """
        one, headroom = self.copies[copy], self.headroom_of(copy)
        if headroom is None or one.beside_bytes is None or one.delta_bytes[F] <= 0:
            return None
        most = max(1, (headroom - one.beside_bytes) // one.delta_bytes[F])
        return most if most < _forwards_in(one, headroom) else None


def _forwards_in(copy: StageCopy, headroom: int) -> int:
    """Return the most forwards that levels allow before the first backward, one at least."""
    return 1 + max(0, headroom - copy.peak_above_bytes[F]) // copy.delta_bytes[F]
