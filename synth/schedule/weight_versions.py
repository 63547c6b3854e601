"""Weights that have versions: updates within a plan, and the version that each op reads.

Without `WeightVersions` a plan is one update: every op reads the same weights, and STEPs end the
programs (a *flush*). With them the STEPs stand between the ops. STEP(s, v) takes the gradients of
micro-batches k·v to k·v + k − 1 and replaces version v of stage s by version v + 1. Version 0 is
there from the start. A version that is still read after it was replaced is stashed until its last
reader: `weights(s, v)`.

Several ranks may hold a stage (PipeDream's 1F1B-RR). Then k is `every` of each of them, and each
runs STEP(s, v) once, after an all-reduce of the gradients of those k micro-batches.

    method                               every    forward    backward
    PipeDream, weight stashing           1        newest     stashed
    PipeDream, vertical sync             1        vertical   stashed
    PipeDream-2BW                        k        batch-1    stashed
    pipelined BP (delayed update)        1        newest     newest
    PACI                                 k        newest     newest

Which versions are read, how many are alive, and with it memory follow from the order of the ops.
"""

from dataclasses import dataclass
from enum import StrEnum


class ForwardReads(StrEnum):
    """The version that F reads."""

    NEWEST = "newest"
    """The newest one on its rank."""
    VERTICAL = "vertical"
    """The one that the first stage read for this micro-batch (PipeDream's vertical sync)."""
    PREVIOUS_BATCH = "batch-1"
    """The one before its batch's update, and before that of the previous batch (PipeDream-2BW)."""


class BackwardReads(StrEnum):
    """The version that B, BW and R read."""

    STASHED = "stashed"
    """The one that F of the micro-batch read (PipeDream's weight stashing)."""
    NEWEST = "newest"
    """The newest one on its rank."""


@dataclass(frozen=True)
class WeightVersions:
    """An update after every `every` micro-batches, and the versions that are read between them.

    Attributes:
        every: the number of micro-batches of an update, of each rank that holds the stage. All
            ranks' together are a divisor of those of the plan.
        forward: the version that F reads.
        backward: the version that B, BW and R read.
    """

    every: int = 1
    forward: ForwardReads = ForwardReads.NEWEST
    backward: BackwardReads = BackwardReads.STASHED

    def __str__(self) -> str:
        """The three words: `every 4, F batch-1, B stashed`."""
        return f"every {self.every}, F {self.forward}, B {self.backward}"
