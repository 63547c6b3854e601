"""Schedulers of blocks: static ones are given, dynamic ones drawn, checked and kept.

With a pipeline depth of the engine, both are those of the pipelined engine.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from synth.errors import SynthError

from .dependency import DependencyCheck
from .sampling import Sampler

# Candidates per parameter of a block; the released scheduler draws four times the block's size.
_CANDIDATES = 4


class StaticScheduler:
    """Goes through given blocks in turn, for models whose dependencies are known beforehand."""

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        """Begin with the first block.

        Args:
            blocks: the numbers of the parameters of each.

        Raises:
            SynthError: there is no block, or an empty one.
        """
        if not blocks or any(not block.numel() for block in blocks):
            raise SynthError(
                f"{len(blocks)} blocks, of which some are empty or none is there; give at least "
                f"one, each with a parameter"
            )
        self._blocks = list(blocks)
        self._next = 0

    def next_block(self, in_flight: Tensor) -> Tensor:
        """Return the next block; an empty one while parameters of it are in flight."""
        block = self._blocks[self._next]
        if torch.isin(block, in_flight).any():
            return block[:0]
        self._next = (self._next + 1) % len(self._blocks)
        return block


class DynamicScheduler:
    """Chooses blocks; a `ScheduledModel` calls it in `schedule` and `pull`."""

    def __init__(
        self,
        sampler: Sampler,
        block_size: int,
        *,
        check: DependencyCheck | None,
        candidates: int | None = None,
    ) -> None:
        """Prepare a scheduler.

        Args:
            sampler: draws candidates.
            block_size: the largest number of parameters that are updated in parallel.
            check: drops candidates that depend on others; None: all of them are updated, which may
                diverge (Bradley et al. 2011).
            candidates: the number drawn for a block; None: four times the block size with a
                check, else the block size.

        Raises:
            SynthError: blocks are empty, or larger than the number of candidates.
        """
        drawn = candidates
        if drawn is None:
            drawn = block_size * (_CANDIDATES if check is not None else 1)
        if block_size < 1 or drawn < block_size:
            raise SynthError(
                f"blocks of {block_size} parameters from {drawn} candidates; a block needs at "
                f"least one parameter, and as many candidates as parameters"
            )
        self._sampler = sampler
        self._check = check
        self._block_size = block_size
        self._candidates = drawn

    def next_block(self, in_flight: Tensor) -> Tensor:
        """Return the parameters to update next, as `ScheduledModel.schedule` must."""
        drawn = self._sampler.draw(self._candidates, in_flight)
        block = drawn[: self._block_size]
        if self._check is not None and len(drawn):
            block = self._check.keep(drawn, in_flight, self._block_size)
        self._sampler.scheduled(block)
        return block

    def changed(self, block: Tensor, changes: Tensor) -> None:
        """Note the changes of a block's parameters."""
        self._sampler.changed(block, changes)
