"""What the search needs of a problem, as plain integers: durations, bytes, delays, chunk by chunk.

Memory is seen as a sum over the ops that a rank has done: each op changes the level by its effect,
and needs so much above the level before it. `synth.solve.instance.memory_models` makes views of a
problem.
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


class Slot(NamedTuple):
    """The op of a kind that a chunk, named by the context, runs as its k-th."""

    kind: OpKind
    microbatch: int


# An op: its chunk, and which of that chunk's.
Node = tuple[int, Slot]


class Chunk(NamedTuple):
    """One stage of one replica, on its rank, and the micro-batches that pass it.

    These are `num_micro_batches` from `first` on.
    `effect_bytes[kind]` is how an op changes its rank's level for good; BW's is B's and W's
    together. `need_bytes[kind]` is how far memory is above the level before the op while it runs
    and right after it: boundary values that it reads and makes, and its workspace.

    `above` and `below` are the chunks of the stages before and after, none at the ends; `down_us`
    is the transfer time of activations to `below`, `up_us` of gradients from it, 0 on one rank.
    `reduce_us` is the all-reduce of its gradients with those of its copies.
    `beside_bytes`: whenever most micro-batches are in flight, boundary buffers and values kept for
    W hold at least this much besides what F's keep; None: no such minimum is known.
    """

    rank: int
    stage: int
    replica: int
    first: int
    num_micro_batches: int
    duration_us: dict[OpKind, int]
    effect_bytes: dict[OpKind, int]
    need_bytes: dict[OpKind, int]
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


def fusible(chunk: Chunk) -> Chunk:
    """B and W as cheap as BW allows, see `relaxed_for_fusion`."""
    durations, need = chunk.duration_us, chunk.need_bytes
    backward_us = min(durations[B], durations[BW])
    weight_us = min(durations[W], durations[BW] - backward_us)
    # At W the level already has B's change in it; at BW it has not.
    fused_need = need[BW] - chunk.effect_bytes[B]
    return chunk._replace(
        duration_us={**durations, B: backward_us, W: weight_us},
        need_bytes={**need, B: min(need[B], need[BW]), W: min(need[W], fused_need)},
    )


class Life(NamedTuple):
    """Bytes of each micro-batch that are there from the end of one op to the end of another."""

    num_bytes: int
    made: tuple[int, OpKind]
    freed: tuple[int, OpKind]


@dataclass(frozen=True)
class View:
    """All chunks of a problem, replica by replica in forward order, and the room of each rank.

    `room_bytes[rank]` is the cap less the static bytes, None without a cap. `lives` are what the
    effects add up: each on the rank of the chunk that makes it.
    """

    chunks: tuple[Chunk, ...]
    room_bytes: tuple[int | None, ...]
    lives: tuple[Life, ...] = ()

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, chunk: int) -> Chunk:
        return self.chunks[chunk]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.room_bytes)

    @cached_property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """The chunks of each rank, by stage and replica: the order of their STEPs."""
        of_rank: list[list[int]] = [[] for _ in self.room_bytes]
        for stage, replica in sorted(self.index):
            chunk = self.index[stage, replica]
            of_rank[self.chunks[chunk].rank].append(chunk)
        return tuple(map(tuple, of_rank))

    @cached_property
    def index(self) -> dict[tuple[int, int], int]:
        """The chunk of a (stage, replica)."""
        return {(chunk.stage, chunk.replica): i for i, chunk in enumerate(self.chunks)}

    @cached_property
    def num_ops(self) -> int:
        """F, B and W of all chunks."""
        return 3 * sum(chunk.num_micro_batches for chunk in self.chunks)

    def room_of(self, chunk: int) -> int | None:
        """The room on a chunk's rank."""
        return self.room_bytes[self.chunks[chunk].rank]

    @cached_property
    def reductions(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """For each set of ranks, the stages whose gradients they reduce, one after the other."""
        ranks_of: dict[int, set[int]] = {}
        for chunk in self.chunks:
            if chunk.reduce_us > 0:
                ranks_of.setdefault(chunk.stage, set()).add(chunk.rank)
        groups: dict[tuple[int, ...], tuple[int, ...]] = {}
        for stage, ranks in ranks_of.items():
            among = tuple(sorted(ranks))
            groups[among] = (*groups.get(among, ()), stage)
        return groups

    def chains(self, rank: int) -> list[tuple[int, ...]]:
        """A rank's chunks by replica, in forward order: a micro-batch passes one of these."""
        held = self.held[rank]
        replicas = sorted({self.chunks[c].replica for c in held})
        return [tuple(c for c in held if self.chunks[c].replica == r) for r in replicas]

    def copies(self, stage: int) -> list[int]:
        """The chunks of a stage."""
        return [index for index, chunk in enumerate(self.chunks) if chunk.stage == stage]

    def step_us(self, rank: int) -> int:
        """All STEPs of a rank, one after the other at its end."""
        return sum(self.chunks[c].duration_us[STEP] for c in self.held[rank])

    @property
    def holds_several(self) -> bool:
        """Whether some rank holds more than one chunk."""
        return any(len(held) > 1 for held in self.held)

    def is_alone(self, chunk: int) -> bool:
        """Whether a chunk has its rank for itself."""
        return len(self.held[self.chunks[chunk].rank]) == 1

    def slots(self, chunk: int) -> Iterator[Slot]:
        """All ops of a chunk, BW as B and W."""
        passes = range(self.chunks[chunk].num_micro_batches)
        return (Slot(kind, k) for kind in SPLIT for k in passes)

    # Ways between chunks, with nothing to wait for

    def chain_above(self, chunk: int) -> Iterator[int]:
        """The chunks before this one, nearest first."""
        above = self.chunks[chunk].above
        while above is not None:
            yield above
            above = self.chunks[above].above

    @cached_property
    def head_us(self) -> tuple[int, ...]:
        """When the first F of each chunk can start."""
        heads: list[int] = []
        for chunk in self.chunks:
            above = chunk.above
            heads.append(0 if above is None else heads[above] + self.step_down_us(above))
        return tuple(heads)

    @cached_property
    def slowest_f_us(self) -> tuple[int, ...]:
        """The longest F of each chunk and those above it: F k arrives k times that after F 0."""
        slowest: list[int] = []
        for chunk in self.chunks:
            above = 0 if chunk.above is None else slowest[chunk.above]
            slowest.append(max(above, chunk.duration_us[F]))
        return tuple(slowest)

    def step_down_us(self, chunk: int) -> int:
        """From the start of F to where the next chunk can start its own."""
        return self.chunks[chunk].duration_us[F] + self.chunks[chunk].down_us

    @cached_property
    def round_trip_us(self) -> tuple[int, ...]:
        """For each chunk, the least time from the end of F to the start of B of a micro-batch."""
        trips = [0] * len(self.chunks)
        for index in reversed(range(len(self.chunks))):
            chunk = self.chunks[index]
            if chunk.below is not None:
                below = self.chunks[chunk.below].duration_us
                ways = chunk.down_us + chunk.up_us
                trips[index] = ways + below[F] + trips[chunk.below] + below[B]
        return tuple(trips)

    def way_down_us(self, above: int, chunk: int) -> int:
        """The least time from the end of F on `above` to the start of F on `chunk`, below it."""
        return self.head_us[chunk] - self.head_us[above] - self.chunks[above].duration_us[F]

    def way_up_us(self, chunk: int, above: int) -> int:
        """The least time from the end of B on `chunk` to the start of B on `above`."""
        way_us = 0
        for other in self.chain_above(chunk):
            way_us += self.chunks[other].up_us
            if other == above:
                break
            way_us += self.chunks[other].duration_us[B]
        return way_us

    @cached_property
    def origins_us(self) -> tuple[int, ...] | None:
        """When each rank starts, where every schedule starts it then: else None.

        That is so with one replica where the first stages of the ranks are, in some order, stages
        0, 1, 2, …: then F of micro-batch 0 of these is the first op of each rank, and nothing
        delays it.
        """
        firsts = [held[0] for held in self.held]
        if any(chunk.replica for chunk in self.chunks) or max(firsts) >= self.num_ranks:
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
        for chunk in (self.chunks[index] for index in self.held[rank]):
            times = chunk.duration_us
            backward_us = min(times[B] + times[W], times[BW])
            work_us += chunk.num_micro_batches * (times[F] + backward_us)
        return work_us

    def shortest_life_us(self, life: Life) -> int:
        """The least time from the end of the op that makes it to the end of that which frees it."""
        (made, made_by), (freed, freed_by) = life.made, life.freed
        durations = self.chunks[freed].duration_us
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
        chunks = enumerate(self.chunks)
        return all(self.is_alone(i) or not chunk.gains_by_fusion for i, chunk in chunks)

    # Memory

    def allows(self, chunk: int, kind: OpKind, level_bytes: int) -> bool:
        """Whether an op fits on top of its rank's level."""
        room = self.room_of(chunk)
        return room is None or level_bytes + self.chunks[chunk].need_bytes[kind] <= room

    def most_forwards(self, chunk: int) -> int:
        """How many forwards of a chunk memory takes before its first backward, one at least."""
        room = self.room_in_forwards(chunk)
        count = self.chunks[chunk].num_micro_batches
        return count if room is None else min(count, room)

    def room_in_forwards(self, chunk: int) -> int | None:
        """The same, were there any number of micro-batches; None: memory does not limit it."""
        one, room = self.chunks[chunk], self.room_of(chunk)
        if room is None or one.effect_bytes[F] <= 0:
            return None
        most = self.most_in_flight(chunk)
        return _forwards_in(one, room) if most is None else most

    def most_in_flight(self, chunk: int) -> int | None:
        """Return the most micro-batches of a chunk that can be in flight: F done and B not.

        None: the levels alone allow no more. One may always be in flight: where that does not fit,
        nothing does.
        """
        one, room = self.chunks[chunk], self.room_of(chunk)
        if room is None or one.beside_bytes is None or one.effect_bytes[F] <= 0:
            return None
        most = max(1, (room - one.beside_bytes) // one.effect_bytes[F])
        return most if most < _forwards_in(one, room) else None


def _forwards_in(chunk: Chunk, room: int) -> int:
    """Return the most forwards that levels allow before the first backward, one at least."""
    return 1 + max(0, room - chunk.need_bytes[F]) // chunk.effect_bytes[F]
