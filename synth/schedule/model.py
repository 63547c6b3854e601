"""A schedule: a placement of stages on ranks, and the ordered ops of each. It holds no clock."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from synth.kinds import MEASURED
from synth.schedule.ops import Op


@dataclass(frozen=True)
class Placement:
    """Where stages live: `ranks[replica][stage]` is a rank."""

    ranks: tuple[tuple[int, ...], ...]

    @classmethod
    def linear(cls, num_ranks: int) -> "Placement":
        """Stage s on rank s, one copy."""
        return cls((tuple(range(num_ranks)),))

    def rank_of(self, stage: int, replica: int = 0) -> int:
        """The rank that holds a stage."""
        return self.ranks[replica][stage]

    @property
    def num_stages(self) -> int:
        """Number of stages, copies not counted."""
        return len(self.ranks[0])

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return max(max(ranks) for ranks in self.ranks) + 1

    @cached_property
    def held(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each rank the (stage, replica) pairs that it holds, in forward order."""
        pairs: list[list[tuple[int, int]]] = [[] for _ in range(self.num_ranks)]
        for replica, ranks in enumerate(self.ranks):
            for stage, rank in enumerate(ranks):
                pairs[rank].append((stage, replica))
        return tuple(tuple(sorted(held)) for held in pairs)


@dataclass(frozen=True)
class Buffering:
    """Where lowering puts the two ends of a transfer, in compute ops: moves do not count.

    A receive is posted `receive_ahead` ops before the op that reads it; a send is waited for, and
    its value freed, `send_behind` ops after the op that made it. More costs boundary buffers, less
    makes ranks wait for each other: with 1 and 2 every published schedule keeps its published time
    (with 1 and 1, ZB-H2's bubble rate grows by up to 2.2 points as senders wait).
    """

    receive_ahead: int = 1
    send_behind: int = 2


@dataclass(frozen=True)
class Schedule:
    """Order only: one program per rank. Times come from simulating it on costs.

    Transfers that follow from the placement are not listed: lowering inserts them. So it does with
    the reductions of gradients between copies: `eager` ones begin when their stage's gradients are
    complete, others when their ranks have run all their ops.
    """

    placement: Placement
    num_micro_batches: int
    programs: tuple[tuple[Op, ...], ...]
    name: str = "unnamed"
    buffering: Buffering = Buffering()
    eager: bool = True

    @classmethod
    def linear(
        cls, name: str, num_micro_batches: int, programs: Iterable[Iterable[Op]]
    ) -> "Schedule":
        """A schedule with stage s on rank s."""
        listed = tuple(tuple(program) for program in programs)
        return cls(Placement.linear(len(listed)), num_micro_batches, listed, name)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.programs)

    @property
    def keeps_saved(self) -> bool:
        """Whether everything that F saves stays where it is until its B: no R, and no moves."""
        return all(op.kind in MEASURED for program in self.programs for op in program)
