"""The choices by which visits of weights and reductions of gradients are placed in an order."""

from dataclasses import dataclass

from synth.schedule.model import Buffering
from synth.schedule.weight_flow import Sharded

DEFAULT_BUFFERING = Buffering()


@dataclass(frozen=True)
class VisitOptions:
    """The choices by which visits are placed.

    Attributes:
        ahead: the number of ops before its first reader at which a visit may begin.
        most_open: the most stages whose weights are on a rank at once; None: as many as fit.
        scatter_every: the number of W's of a stage after which its gradient is reduced. Whole
            gradients (ZeRO-1) are reduced once, whatever it says.
        gathers_first: True if all-gathers come before reduce-scatters among collectives at one
            place.
        sharded: the state that homes alone keep.
        reserve_bytes: room that visits leave.
    """

    ahead: int = 1
    most_open: int | None = None
    scatter_every: int = 1
    gathers_first: bool = False
    buffering: Buffering = DEFAULT_BUFFERING
    sharded: Sharded = Sharded.WEIGHTS
    reserve_bytes: int = 0

    def is_reduced(self, count: int, rounds: int) -> bool:
        """True if a REDUCE_GRAD follows the `count`-th of `rounds` W's of a stage."""
        if self.sharded == Sharded.OPTIMIZER:
            return count == rounds
        return count % self.scatter_every == 0 or count == rounds
