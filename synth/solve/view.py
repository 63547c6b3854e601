"""What the search needs of a problem, as plain integers: durations, bytes, delays, chunk by chunk.

Memory is seen as a sum over the ops that a rank has done: each op changes the level by its effect,
and needs so much above the level before it. What boundary buffers in flight add is not a sum of
effects; two views bracket it, `certain` from below and `cautious` from above.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from synth.kinds import OpKind
from synth.schedule.model import Buffering
from synth.schedule.ops import Op
from synth.solve.problem import Problem

F, B, W, BW, STEP = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.STEP
SPLIT = (F, B, W)


class Slot(NamedTuple):
    """The op of a kind that a chunk, named by the context, runs as its k-th."""

    kind: OpKind
    microbatch: int


class Chunk(NamedTuple):
    """One stage of one replica, on its rank, and the micro-batches that pass it.

    These are `num_micro_batches` from `first` on.
    `effect_bytes[kind]` is how an op changes its rank's level for good; BW's is B's and W's
    together. `need_bytes[kind]` is how far memory is above the level before the op while it runs
    and right after it: boundary values that it reads and makes, and its workspace.

    `above` and `below` are the chunks of the stages before and after, none at the ends; `down_us`
    is the transfer time of activations to `below`, `up_us` of gradients from it, 0 on one rank.
    `reduce_us` is the all-reduce of its gradients with those of its copies.
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
        return _fusible(self) != self

    def op(self, kind: OpKind, k: int) -> Op:
        """The k-th op of a kind."""
        return Op(kind, self.stage, 0 if kind == STEP else self.first + k, self.replica)


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

    def copies(self, stage: int) -> list[int]:
        """The chunks of a stage."""
        return [index for index, chunk in enumerate(self.chunks) if chunk.stage == stage]

    def step_us(self, rank: int) -> int:
        """All STEPs of a rank, one after the other at its end."""
        return sum(self.chunks[c].duration_us[STEP] for c in self.held[rank])

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
        way_us, at = 0, chunk
        for other in self.chain_above(chunk):
            way_us += self.chunks[other].up_us
            if other == above:
                return way_us
            way_us += self.chunks[other].duration_us[B]
            at = other
        raise ValueError(f"chunk {above} is not above {at}")

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

    # Memory

    def allows(self, chunk: int, kind: OpKind, level_bytes: int) -> bool:
        """Whether an op fits on top of its rank's level."""
        room = self.room_of(chunk)
        return room is None or level_bytes + self.chunks[chunk].need_bytes[kind] <= room


def certain(problem: Problem) -> View:
    """Count only what is there in every schedule of this order: a relaxation of the memory rule.

    While F runs its received activation is on the rank, while B runs its received gradient;
    receives posted for later ops and sends waited for later are left out.
    """
    return _Builder(problem, Buffering(0, 0), is_cautious=False).view()


def cautious(problem: Problem, buffering: Buffering) -> View:
    """Count the most that receives posted ahead and sends waited for behind can add to any op."""
    return _Builder(problem, buffering, is_cautious=True).view()


def relaxed_for_fusion(problem: Problem) -> View:
    """Make `certain` valid with fused BW too, by lowering B and W where BW is cheaper.

    A schedule with BW j becomes one with B j and W j in its place, B first: with B' = min(B, BW)
    and W' = min(W, BW − B') it takes no longer and the gradient leaves no later. In memory B'
    needs no more than BW did, and W' no more than the larger of what it needs itself and what BW
    used, hence the minimum of both. So a bound on this problem bounds split and fused schedules.
    """
    view = certain(problem)
    chunks = tuple(_fusible(chunk) for chunk in view.chunks)
    # What B makes for W is never there when BW does both.
    fused = {index for index, chunk in enumerate(view.chunks) if chunk.gains_by_fusion}
    lives = [life for life in view.lives if life.made[1] != B or life.made[0] not in fused]
    return View(chunks, view.room_bytes, tuple(lives))


def _fusible(chunk: Chunk) -> Chunk:
    durations, need = chunk.duration_us, chunk.need_bytes
    backward_us = min(durations[B], durations[BW])
    weight_us = min(durations[W], durations[BW] - backward_us)
    # At W the level already has B's change in it; at BW it has not.
    fused_need = need[BW] - chunk.effect_bytes[B]
    return chunk._replace(
        duration_us={**durations, B: backward_us, W: weight_us},
        need_bytes={**need, B: min(need[B], need[BW]), W: min(need[W], fused_need)},
    )


class _Builder:
    """Adds up, chunk by chunk, what lives from which op to which."""

    def __init__(self, problem: Problem, buffering: Buffering, is_cautious: bool) -> None:
        self.problem, self.buffering, self.is_cautious = problem, buffering, is_cautious
        self.costs, self.placement = problem.costs, problem.placement
        self.num_stages = self.placement.num_stages
        self.lives: list[Life] = []
        self.effects = [
            dict.fromkeys(SPLIT, 0) for _ in range(len(self.placement.ranks) * self.num_stages)
        ]

    def view(self) -> View:
        chunks = range(len(self.effects))
        for chunk in chunks:
            self._add_effects(chunk)
        in_flight = self._in_flight_bytes()
        caps, held = self.problem.caps_bytes, self.placement.held
        stages = self.costs.stages
        rooms = tuple(
            None
            if caps is None
            else caps[rank] - sum(stages[s].static_bytes for s, _ in held[rank])
            for rank in range(self.placement.num_ranks)
        )
        made = tuple(self._chunk(chunk, in_flight) for chunk in chunks)
        return View(made, rooms, tuple(self.lives))

    def _rank(self, chunk: int) -> int:
        replica, stage = divmod(chunk, self.num_stages)
        return self.placement.rank_of(stage, replica)

    def _above(self, chunk: int) -> int | None:
        return chunk - 1 if chunk % self.num_stages else None

    def _below(self, chunk: int) -> int | None:
        return chunk + 1 if (chunk + 1) % self.num_stages else None

    def _is_local(self, chunk: int, other: int | None) -> bool:
        return other is not None and self._rank(chunk) == self._rank(other)

    def _lives(self, num_bytes: int, made: tuple[int, OpKind], freed: tuple[int, OpKind]) -> None:
        """Something is there from the end of one op to the end of another."""
        self.lives.append(Life(num_bytes, made, freed))
        self.effects[made[0]][made[1]] += num_bytes
        self.effects[freed[0]][freed[1]] -= num_bytes

    def _add_effects(self, chunk: int) -> None:
        """What F keeps, what B leaves, and the boundary values above and below."""
        stage = self.costs.stages[chunk % self.num_stages]
        self._lives(stage.saved_bytes, (chunk, F), (chunk, B))
        self._lives(stage.saved_w_bytes, (chunk, B), (chunk, W))
        above, below = self._above(chunk), self._below(chunk)
        if above is not None:
            size = self.costs.stages[above % self.num_stages].output_bytes
            if self._is_local(chunk, above):
                self._add_local_boundary(above, chunk, size)
            elif stage.input_until != F:
                self._lives(size, (chunk, F), (chunk, stage.input_until))
        if below is not None and not self._is_local(chunk, below):
            size = stage.output_bytes
            if stage.output_until != F:
                self._lives(size, (chunk, F), (chunk, stage.output_until))
            if stage.gradient_until == W:
                self._lives(size, (chunk, B), (chunk, W))

    def _add_local_boundary(self, above: int, below: int, size: int) -> None:
        """An activation and its gradient between two stages of one rank: made once, not sent."""
        upper = self.costs.stages[above % self.num_stages]
        lower = self.costs.stages[below % self.num_stages]
        self._lives(size, (below, B), (above, upper.gradient_until))
        # Until the stage above lets go of its output, and the one below of its input. B above
        # comes after B below; W's have no order, and then one of the two counts, or both.
        if upper.output_until == F or (upper.output_until, lower.input_until) == (B, W):
            self._lives(size, (above, F), (below, lower.input_until))
            if upper.output_until == B and self.is_cautious:
                self._lives(size, (above, F), (above, B))
            return
        self._lives(size, (above, F), (above, upper.output_until))
        if lower.input_until == W and self.is_cautious:
            self._lives(size, (above, F), (below, W))

    def _in_flight_bytes(self) -> list[int]:
        """For each rank, what receives posted ahead and sends waited for behind can add."""
        largest = [0] * self.placement.num_ranks
        for chunk in range(len(self.effects)):
            below = self._below(chunk)
            if below is not None and not self._is_local(chunk, below):
                size = self.costs.stages[chunk % self.num_stages].output_bytes
                for rank in (self._rank(chunk), self._rank(below)):
                    largest[rank] = max(largest[rank], size)
        # The next receive is posted before the present send is waited for.
        ops = self.buffering.receive_ahead + self.buffering.send_behind + self.is_cautious
        return [ops * size for size in largest]

    def _chunk(self, chunk: int, in_flight: list[int]) -> Chunk:
        replica, stage = divmod(chunk, self.num_stages)
        rank, above, below = self._rank(chunk), self._above(chunk), self._below(chunk)
        first, count = self.problem.share(replica)
        effect = {**self.effects[chunk]}
        effect[BW] = effect[B] + effect[W]
        need = self._needs(chunk, effect)
        ways = (0, 0)
        if below is not None and not self._is_local(chunk, below):
            ends = (rank, self._rank(below))
            ways = (
                self.costs.boundary_us(stage, *ends),
                self.costs.boundary_us(stage, *ends[::-1]),
            )
        return Chunk(
            rank=rank,
            stage=stage,
            replica=replica,
            first=first,
            num_micro_batches=count,
            duration_us={kind: self.costs.stages[stage].duration_us[kind] for kind in OpKind},
            effect_bytes=effect,
            need_bytes={kind: size + in_flight[rank] for kind, size in need.items()},
            above=above,
            below=below,
            down_us=ways[0],
            up_us=ways[1],
            reduce_us=self.problem.reduction_us(stage),
        )

    def _needs(self, chunk: int, effect: dict[OpKind, int]) -> dict[OpKind, int]:
        """Bytes above the level before each op: the highest of while it runs and right after it."""
        stage = self.costs.stages[chunk % self.num_stages]
        above, below = self._above(chunk), self._below(chunk)
        received = sent_up = received_up = sent = 0
        if above is not None and not self._is_local(chunk, above):
            received = sent_up = self.costs.stages[above % self.num_stages].output_bytes
        if below is not None and not self._is_local(chunk, below):
            received_up = stage.output_bytes
            sent = stage.output_bytes if stage.output_until == F else 0
        rise = stage.rise_bytes
        return {
            F: max(received + rise[F], effect[F] + sent),
            B: max(received_up + rise[B], effect[B] + sent_up),
            W: max(rise[W], effect[W], 0),
            BW: max(received_up + rise[BW], effect[BW] + sent_up),
            STEP: rise[STEP],
        }
