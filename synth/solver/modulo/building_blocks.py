"""Building blocks: modulo schedules of ranks with any stages, by simulated annealing.

A building block is the schedule of the micro-batches of one interval; repeated, it is the schedule
of all (Qi et al. 2024, arXiv 2405.15362, section 3). There the ops of a block are placed by hand,
for equal stages; here `block_kernel` anneals their places until the block keeps the memory limits
at a given interval. The interval becomes shorter as long as that succeeds.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from synth.solver.evaluate.block_arrays import NUMBERS_PER_MOVE, PlacedBlock, block_arrays
from synth.solver.evaluate.compiled import block_kernel
from synth.solver.evaluate.op_table import NONE
from synth.solver.instance.instance import F, Instance, OpIndex
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.tuning import BUILDING_BLOCKS


class _Found(NamedTuple):
    """A block that fits, and its interval in µs."""

    block: PlacedBlock
    interval: int


class BuildingBlocks:
    """The blocks of some micro-batches of each replica.

    Args:
        instance: with headrooms; times are in µs.
        size: the micro-batches of each replica in an interval.
        seed: of all random choices.
        spend: called with the seconds of effort.
        should_stop: polled every few milliseconds.
    """

    def __init__(
        self,
        instance: Instance,
        size: int,
        seed: int,
        spend: Callable[[float], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.size, self._rng = size, np.random.default_rng(seed)
        self._arrays, self._nodes = block_arrays(instance, size)
        self._spend, self._should_stop = spend, should_stop
        num_ops, of_rank = len(self._nodes), np.diff(self._arrays.first_held)
        self._s_per_move = BUILDING_BLOCKS.s_per_pair * num_ops * int(of_rank.max())
        self._moves_at_once = max(1, int(BUILDING_BLOCKS.look_s / self._s_per_move))
        self._looks = self._least_looks = max(
            1, BUILDING_BLOCKS.moves_per_pair * num_ops**2 // self._moves_at_once
        )
        busy_us = np.bincount(self._arrays.rank, self._arrays.duration)
        self._least_us = int(busy_us.max())
        self._found: _Found | None = None
        self._is_first = [
            kind == F and instance[copy].above is None for copy, (kind, _) in self._nodes
        ]

    @property
    def shortest(self) -> CyclicSchedule | None:
        """The block of the shortest interval so far; None before the first."""
        return None if self._found is None else self._schedule(*self._found)

    def repeat(self, smaller: CyclicSchedule) -> None:
        """Begin from a block of fewer micro-batches, as often as it takes, unless more is known.

        Args:
            smaller: whose size divides this one.
        """
        turns = self.size // smaller.size
        interval = smaller.interval * turns
        if self._found is not None and self._found.interval <= interval:
            return
        arrays, starts = self._arrays, np.zeros(len(self._nodes), np.int64)
        for place, (copy, (kind, k)) in enumerate(self._nodes):
            turn, within = divmod(k, smaller.size)
            at = smaller.starts[copy, OpIndex(kind, within)]
            starts[place] = at + turn * smaller.interval
        ready = starts[arrays.source] + arrays.duration[arrays.source] + arrays.lag
        waits = starts - np.where(arrays.source == NONE, 0, ready)
        self._found = _Found(PlacedBlock(np.arange(len(starts)), waits, starts), interval)

    def run(self, least_us: float, most_us: float, effort: int = 1) -> Iterator[CyclicSchedule]:
        """Yield blocks of ever shorter intervals, and each that is followed by none made shorter.

        After a try that succeeds the next step is twice as long, and after one that fails half as
        long. Where this was run before, it goes on from the shortest block. The first block is at a
        longer interval than asked for, where one is found soon: a block that fits a longer interval
        is near one that fits this one, or not at all.

        Args:
            least_us: per micro-batch; nothing shorter is tried.
            most_us: per micro-batch; longer ones are of no use.
            effort: multiple of the least number of moves for one interval.
        """
        self._looks = effort * self._least_looks
        least = max(1, self._least_us, math.ceil(self.size * least_us))
        most, step = int(self.size * most_us), BUILDING_BLOCKS.first_step
        self._found = self._found or self._first(most)
        begin, shortest = self._found or _Found(self._at_once(most), most)
        new: _Found | None = None
        while step >= BUILDING_BLOCKS.least_step and shortest > least and not self._should_stop():
            interval = max(least, min(shortest - 1, round(shortest * (1 - step))))
            found = self._fitting(begin, interval)
            if found is None:
                step /= 2
                yield from self._compacted(new)
                new = None
                continue
            begin, shortest, step = found, interval, min(2 * step, BUILDING_BLOCKS.most_step)
            self._found = _Found(begin, shortest)
            if interval < most:
                new = self._found
                yield self._schedule(*new)
        yield from self._compacted(new)

    def _first(self, most: int) -> "_Found | None":
        """Return a block at a longer interval, the shortest of few; None if none is found."""
        for stretch in BUILDING_BLOCKS.first_stretches:
            if self._should_stop():
                break
            interval = round(stretch * most)
            found = self._fitting(self._at_once(interval), interval)
            if found is not None:
                return _Found(found, interval)
        return None

    def _at_once(self, interval: int) -> PlacedBlock:
        """Return a block in which micro-batches begin at equal distances and nothing waits."""
        num_ops = len(self._nodes)
        waits = [
            k * interval // self.size if is_first else 0
            for (_, (_, k)), is_first in zip(self._nodes, self._is_first, strict=True)
        ]
        starts = np.zeros(num_ops, np.int64)
        return PlacedBlock(np.arange(num_ops), np.array(waits, np.int64), starts)

    def _fitting(self, begin: PlacedBlock, interval: int) -> PlacedBlock | None:
        """Return a block that repeats within the limits at an interval; None if none is found."""
        afresh = self._at_once(interval)
        for block, temperatures in zip((begin, afresh), BUILDING_BLOCKS.temperatures, strict=True):
            best, misfit = self._annealed(block, interval, temperatures, compacts=False)
            if misfit == 0:
                return best
        return None

    def _compacted(self, found: _Found | None) -> Iterator[CyclicSchedule]:
        """Yield a shorter block at the same interval, which fills and drains sooner, if it is."""
        if found is None:
            return
        temperatures = BUILDING_BLOCKS.temperatures_of_compaction
        shorter, _ = self._annealed(found.block, found.interval, temperatures, compacts=True)
        if not np.array_equal(shorter.starts, found.block.starts):
            yield self._schedule(shorter, found.interval)

    def _annealed(
        self,
        begin: PlacedBlock,
        interval: int,
        temperatures: tuple[float, float],
        *,
        compacts: bool,
    ) -> tuple[PlacedBlock, float]:
        now, best, costs = begin.copy(), begin.copy(), (math.inf, math.inf)
        hottest, coldest = temperatures
        for look in range(self._looks):
            numbers = self._rng.random((self._moves_at_once, NUMBERS_PER_MOVE))
            temperature = hottest * (coldest / hottest) ** (look / self._looks)
            costs = block_kernel.anneal(
                self._arrays, now, best, costs, interval, temperature, compacts, numbers
            )
            self._spend(self._moves_at_once * self._s_per_move)
            if costs[1] == 0 or self._should_stop():
                break
        return best, costs[1]

    def _schedule(self, block: PlacedBlock, interval: int) -> CyclicSchedule:
        starts = dict(zip(self._nodes, block.starts.tolist(), strict=True))
        return CyclicSchedule(starts, interval, self.size)
