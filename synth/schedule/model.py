"""A schedule: a placement of stages on ranks, and the ordered ops of each rank, without times."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from synth.op_kinds import MEASURED, MOVES
from synth.schedule.ops import Op
from synth.schedule.weight_flow import WeightFlow
from synth.schedule.weight_versions import WeightVersions
from synth.units import counted


@dataclass(frozen=True)
class Placement:
    """The rank of each stage copy: `ranks[replica][stage]`.

    `backward_ranks` are those of R, B, BW and W; None: the same, so that `ranks` are of all ops.
    Equal ones become None.
    """

    ranks: tuple[tuple[int, ...], ...]
    backward_ranks: tuple[tuple[int, ...], ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.backward_ranks == self.ranks:
            object.__setattr__(self, "backward_ranks", None)

    @classmethod
    def linear(cls, num_ranks: int) -> "Placement":
        """Place stage s on rank s, one copy."""
        return cls((tuple(range(num_ranks)),))

    def rank_of(self, stage: int, replica: int = 0) -> int:
        """The rank that holds a stage copy, or runs its forwards."""
        return self.ranks[replica][stage]

    @property
    def of_backwards(self) -> tuple[tuple[int, ...], ...]:
        """The rank of each stage copy's backwards, [replica][stage]."""
        return self.ranks if self.backward_ranks is None else self.backward_ranks

    @property
    def num_stages(self) -> int:
        """The number of stages; copies do not count."""
        return len(self.ranks[0])

    @property
    def num_ranks(self) -> int:
        return max(map(max, (*self.ranks, *self.of_backwards))) + 1

    @cached_property
    def held(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each rank the (stage, replica) pairs that it holds, in forward order.

        Where forwards and backwards have ranks of their own, both hold the stage copy.
        """
        pairs: list[list[tuple[int, int]]] = [[] for _ in range(self.num_ranks)]
        rows = zip(self.ranks, self.of_backwards, strict=True)
        for replica, (forward, backward) in enumerate(rows):
            for stage, ranks in enumerate(zip(forward, backward, strict=True)):
                for rank in set(ranks):
                    pairs[rank].append((stage, replica))
        return tuple(tuple(sorted(held)) for held in pairs)

    @property
    def holds_several(self) -> bool:
        """True if some rank holds several stage copies."""
        return any(len(copies) > 1 for copies in self.held)

    @cached_property
    def rank_order(self) -> tuple[int, ...]:
        """The ranks in the order of their first stages, where one copy is on all of them.

        Of other placements the ranks in order.
        """
        order = tuple(dict.fromkeys(self.ranks[0]))
        is_one = len(self.ranks) == 1 and self.backward_ranks is None
        return order if is_one and len(order) == self.num_ranks else tuple(range(self.num_ranks))

    def with_ranks_in_order(self) -> "Placement":
        """The same placement with rank k where this one has rank `rank_order[k]`."""
        place = {rank: k for k, rank in enumerate(self.rank_order)}
        if all(rank == k for rank, k in place.items()):
            return self
        return Placement(tuple(tuple(place[rank] for rank in row) for row in self.ranks))

    @cached_property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """For each stage the ranks that hold copies of it, in the order of the copies."""
        return tuple(tuple(dict.fromkeys(ranks)) for ranks in zip(*self.ranks, strict=True))

    def holding(self, stage: int) -> tuple[int, ...]:
        """The ranks that hold copies of a stage, in rank order."""
        return tuple(sorted(self.holders[stage]))

    def is_alone(self, stage: int) -> bool:
        """True if a stage is on one rank, which holds nothing else."""
        ranks = self.holders[stage]
        return len(ranks) == 1 and len(self.held[ranks[0]]) == 1

    def held_by_all(self, ranks: Iterable[int]) -> frozenset[int]:
        """The stages that each of some ranks holds."""
        held = [{stage for stage, _ in self.held[rank]} for rank in ranks]
        return frozenset(set.intersection(*held))

    @cached_property
    def first_copies(self) -> tuple[tuple[int, ...], ...]:
        """For each stage copy, [replica][stage], the first replica of the stage on its rank."""
        by_stage = [
            [ranks.index(rank) for rank in ranks] for ranks in zip(*self.ranks, strict=True)
        ]
        return tuple(zip(*by_stage, strict=True))


@dataclass(frozen=True)
class Buffering:
    """The distance from a transfer's two ends to its ops, in compute ops; moves do not count.

    A receive is posted `receive_ahead` ops before the op that reads it. A send is waited for, and
    its value freed, `send_behind` ops after the op that made it. Larger distances cost boundary
    buffers; smaller ones make ranks wait for each other. With 1 and 2 every published schedule
    keeps its published time. With 1 and 1, ZB-H2's bubble rate grows by up to 2.2 points, because
    senders wait.
    """

    receive_ahead: int = 1
    send_behind: int = 2


# Receives are posted where they are read, and sends waited for where they are made: with it a
# schedule needs the least memory, and ranks wait for each other the most.
SMALLEST_BUFFERING = Buffering(0, 0)


@dataclass(frozen=True)
class Schedule:
    """The order of ops: one program per rank. Times come from simulating it on costs.

    Lowering inserts the transfers that follow from the placement, and the reductions of gradients
    between copies. `eager` reductions begin when their stage's gradients are complete, others when
    their ranks have run all their ops. `weights` describes weight passing; None: weights stay with
    their stage copies. `versions` says how often weights are updated and which versions ops read;
    None: once, at the end of the programs. `overlapped` are the F's that run at once with the op
    behind them, a BW of another micro-batch: a pair begins when both can, and ends for both at the
    same time.
    """

    placement: Placement
    num_micro_batches: int
    programs: tuple[tuple[Op, ...], ...]
    name: str = "unnamed"
    buffering: Buffering = Buffering()
    eager: bool = True
    weights: WeightFlow | None = None
    versions: WeightVersions | None = None
    overlapped: frozenset[Op] = frozenset()
    vocabulary: int = 0

    @classmethod
    def linear(
        cls, name: str, num_micro_batches: int, programs: Iterable[Iterable[Op]]
    ) -> "Schedule":
        """Make a schedule with stage s on rank s."""
        listed = tuple(tuple(program) for program in programs)
        return cls(Placement.linear(len(listed)), num_micro_batches, listed, name)

    def __repr__(self) -> str:
        """Name the schedule and its sizes; `programs` has the ops."""
        return (
            f"Schedule {self.name}: {counted(self.num_ranks, 'rank')}, "
            f"{counted(self.placement.num_stages, 'stage')}, "
            f"{counted(self.num_micro_batches, 'micro-batch')}, "
            f"{counted(sum(map(len, self.programs)), 'op')}"
        )

    @property
    def num_ranks(self) -> int:
        return len(self.programs)

    @cached_property
    def update_sizes(self) -> tuple[int, ...]:
        """For each stage the micro-batches of an update, over all ranks that hold it."""
        if self.versions is None:
            return (self.num_micro_batches,) * self.placement.num_stages
        return tuple(self.versions.every * len(ranks) for ranks in self.placement.holders)

    @property
    def num_updates(self) -> int:
        """The number of updates of a stage, of the one that is updated most often."""
        return self.num_micro_batches // min(self.update_sizes)

    @property
    def keeps_saved(self) -> bool:
        """True if nothing is rebuilt or moved: no R, no moves, and no visits of weights."""
        return all(op.kind in MEASURED for program in self.programs for op in program)

    @property
    def one_after_the_other(self) -> "Schedule":
        """The same order, of which no ops run at once."""
        return replace(self, overlapped=frozenset()) if self.overlapped else self

    @property
    def offloads(self) -> bool:
        """True if saved activations move to the host's memory or to another rank."""
        return any(op.kind in MOVES for program in self.programs for op in program)
