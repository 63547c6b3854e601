"""The dynamic engine: rounds of schedule, push and pull, several of them in flight.

Every rank runs the same rounds. A round draws a block of parameters, pushes this rank's part of
their updates, and starts the sum over the ranks; its pull comes up to `depth` rounds later:

    depth 0    push 0 | pull 0 | push 1 | pull 1 | …
    depth 1    push 0 | push 1 | pull 0 | push 2 | pull 1 | …

So a push reads parameters that lack the updates of at most `depth` blocks. This bound on staleness
is exact and depends on no clock: the same seed gives the same parameters at any speed of the ranks.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synth.errors import SynthError, TrainingDiverged

from ..execution.transport.rank_group import RankGroup


class ScheduledModel(ABC):
    """A model for the engine: the three functions of a SchMP program (Kim et al. 2016).

    Each rank has one, with the rank's part of the data and all parameters. `schedule` and `pull`
    must do the same on every rank: they depend on earlier calls, equal seeds and sums alone.
    """

    @abstractmethod
    def schedule(self, in_flight: Tensor) -> Tensor:
        """Choose the next block.

        Args:
            in_flight: the numbers of the parameters whose updates have been pushed but not pulled.

        Returns:
            The numbers of distinct parameters that are not in flight, as int64. It is empty if
            none can be updated beside those in flight.
        """

    @abstractmethod
    def push(self, block: Tensor) -> Tensor:
        """Compute this rank's part of a block's updates from its data.

        Returns:
            A tensor of the same shape and dtype on every rank, which the engine adds up over them
            in place: it belongs to the engine from then on, so return none that the model keeps.
        """

    @abstractmethod
    def pull(self, block: Tensor, total: Tensor) -> Tensor:
        """Update a block's parameters.

        Args:
            block: the numbers of the parameters.
            total: the sum of all ranks' pushes.

        Returns:
            The change of each parameter of the block.
        """


class _OpenBlock(NamedTuple):
    """A block that was pushed; `total` holds the sum over the ranks when `work` has ended."""

    block: Tensor
    total: Tensor
    work: Any


class Engine:
    """Runs a scheduled model on the ranks of a group; all ranks make the same calls."""

    def __init__(self, model: ScheduledModel, group: RankGroup, *, depth: int = 0) -> None:
        """Prepare the engine.

        Args:
            model: this rank's part of the model.
            group: the ranks: `Group.world()`, or the threads of `run_ranks`.
            depth: the most blocks whose updates a push may not have seen, the pipeline depth of
                Kim et al. 2016; 0: none, as if blocks were updated one after another.

        Raises:
            SynthError: the depth is negative.
        """
        if depth < 0:
            raise SynthError(f"the pipeline depth is {depth}; it counts blocks, so give 0 or more")
        self._model = model
        self._depth = depth
        self._sums = group.subgroup(range(group.size), purpose="strads")
        self._open: deque[_OpenBlock] = deque()
        self.num_rounds = 0
        """The number of blocks that were pushed."""
        self.num_updates = 0
        """The number of parameters that were updated, each as often as it was."""
        self.largest_staleness = 0
        """The most blocks that were in flight when another one was pushed."""

    @torch.no_grad()
    def step(self) -> None:
        """Push one block, then pull until no more than `depth` blocks are in flight.

        If no parameter can be updated beside those in flight, only the oldest block is pulled.

        Raises:
            SynthError: nothing is in flight, and the model schedules no parameter.
            TrainingDiverged: a change is NaN or Inf.
            RuntimeError: another rank is gone.
        """
        block = self._model.schedule(self._in_flight())
        if block.numel() == 0:
            self._pull_without_push()
            return
        self.largest_staleness = max(self.largest_staleness, len(self._open))
        total = self._model.push(block).contiguous()  # collectives read memory, not strides
        self._open.append(_OpenBlock(block, total, self._sums.allreduce([total])))
        self.num_rounds += 1
        while len(self._open) > self._depth:
            self._pull()

    @torch.no_grad()
    def drain(self) -> None:
        """Pull all blocks in flight."""
        while self._open:
            self._pull()

    def _in_flight(self) -> Tensor:
        blocks = [each.block for each in self._open]
        return torch.cat(blocks) if blocks else torch.empty(0, dtype=torch.int64)

    def _pull_without_push(self) -> None:
        if not self._open:
            raise SynthError(
                f"round {self.num_rounds} schedules no parameter although none is in flight; "
                f"`schedule` must return at least one then"
            )
        self._pull()

    def _pull(self) -> None:
        block, total, work = self._open.popleft()
        work.wait()
        changes = self._model.pull(block, total)
        if not torch.isfinite(changes).all():
            raise TrainingDiverged(
                f"a parameter became NaN or Inf after {self.num_updates} updates: parameters that "
                f"depend on each other are updated at the same time; check dependencies "
                f"(DependencyCheck), or take smaller blocks or a smaller depth"
            )
        self.num_updates += block.numel()
