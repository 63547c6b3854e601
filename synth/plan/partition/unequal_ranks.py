"""Partitions for ranks of unequal speed: the slowest rank has as little time of work as possible.

A stage takes the work of its layers over the speed of its rank. With one stage per rank the
balanced partition is exact, by dynamic programming over all partitions, as for ranks of equal speed
(`most_even`), with a time for each stage and run of layers. If ranks hold several stages, layers
move across one boundary after the other as long as that is better.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from synth.costs.partition_costs import partition_costs, stage_speeds
from synth.errors import SynthError
from synth.plan.partition.candidates import Sizes, equal_cuts, nearest_cut
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.profile import Profile
from synth.schedule.model import Placement
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem

_Array = npt.NDArray[np.float64]

# Bytes above the caps, the largest time of a rank, and the sum of squares of the stages' times.
_Key = tuple[int, float, float]


def rank_orders(
    placement: Placement, speeds: Sequence[float], caps_bytes: Sequence[int] | None = None
) -> list[Placement]:
    """Return a placement with its ranks in the given order, and in others that may be better.

    The fast ranks come first, or last, or those of much memory come first. Orders with equal ranks
    in every place count once.
    """
    count = placement.num_ranks
    caps = caps_bytes or (0,) * count
    orders = [
        range(count),
        sorted(range(count), key=lambda rank: (-speeds[rank], -caps[rank])),
        sorted(range(count), key=lambda rank: (speeds[rank], -caps[rank])),
        sorted(range(count), key=lambda rank: (-caps[rank], -speeds[rank])),
    ]
    alike = {tuple((speeds[rank], caps[rank]) for rank in order): order for order in orders[::-1]}
    return [
        Placement(tuple(tuple(order[rank] for rank in row) for row in placement.ranks))
        for order in reversed(alike.values())
    ]


def name_in_order(name: str, placement: Placement, ordered: Placement) -> str:
    """Return the name of a placement, with the order of its ranks if that is another."""
    if ordered == placement:
        return name
    order = dict(zip(placement.ranks[0], ordered.ranks[0], strict=True))
    return f"{name} on ranks {','.join(str(order[rank]) for rank in sorted(order))}"


class UnequalRanks:
    """Balances the partitions of a model on a placement whose ranks differ in speed."""

    def __init__(
        self, profile: Profile, placement: Placement, caps_bytes: Sequence[int] | None = None
    ) -> None:
        """Prepare the sums over layers.

        Args:
            profile: with the speeds of the ranks.
            caps_bytes: one for each rank; None: memory does not matter.

        Raises:
            SynthError: see `stage_speeds`; or there are fewer layers than stages.
        """
        assert profile.rank_speeds is not None
        self.profile, self.placement = profile, placement
        self.caps_bytes = None if caps_bytes is None else tuple(caps_bytes)
        self.speeds = np.array(stage_speeds(profile.rank_speeds, placement.ranks))
        self.table = StageCostTable(profile.replace(rank_speeds=None))
        self.num_layers, self.num_stages = self.table.num_layers, placement.num_stages
        if self.num_stages > self.num_layers:
            raise SynthError(
                f"{self.num_stages} stages asked for, the profile has {self.num_layers} layers; "
                f"use fewer ranks or rounds, or profile a deeper model"
            )
        self._keys: dict[Sizes, _Key] = {}

    def balanced(self, should_stop: Callable[[], bool] = lambda: False) -> Sizes:
        """Return the partition with the least largest time of a rank that fits, else the nearest.

        Args:
            should_stop: ends the local search for ranks that hold several stages.
        """
        if self.placement.num_ranks == self.num_stages:
            free = self._exact(fits_only=False)
            if free is not None and not self.key(free)[0]:
                return free
            if (fitting := self._exact(fits_only=True)) is not None:
                return fitting
        begin = [nearest_cut(self.table.work_up_to, self.speeds.tolist())]
        begin += equal_cuts(self.table, self.num_stages)
        best = min(begin, key=self.key)
        while not should_stop():
            better = min(self.neighbours(best), key=self.key, default=best)
            if self.key(better) >= self.key(best):
                break
            best = better
        return best

    def best_cuts(self, most: int, should_stop: Callable[[], bool]) -> list[Sizes]:
        """Return the balanced partition, and those near it that are nearly as good."""
        best = self.balanced(should_stop)
        return [best, *sorted(self.neighbours(best), key=self.key)][:most]

    def neighbours(self, sizes: Sizes) -> Iterator[Sizes]:
        """Yield the partitions with one layer on the other side of one boundary."""
        for stage in range(self.num_stages - 1):
            for moved in (1, -1):
                new = list(sizes)
                new[stage] += moved
                new[stage + 1] -= moved
                if min(new[stage : stage + 2]) > 0:
                    yield tuple(new)

    def key(self, sizes: Sizes) -> _Key:
        """Return what a better partition has less of."""
        if sizes not in self._keys:
            runs = pairwise(accumulate(sizes, initial=0))
            stages = np.array([self.table.work_us(*run) for run in runs]) / self.speeds
            held = self.placement.held
            ranks = [sum(stages[stage] for stage, _ in of_rank) for of_rank in held]
            self._keys[sizes] = self._over_bytes(sizes), max(ranks), float((stages**2).sum())
        return self._keys[sizes]

    def _over_bytes(self, sizes: Sizes) -> int:
        """Return the bytes by which one micro-batch alone exceeds the caps."""
        if self.caps_bytes is None:
            return 0
        costs = partition_costs(self.profile, sizes, self.placement.ranks)
        needed = needed_bytes(Problem(costs, self.placement, len(self.placement.ranks)))
        pairs = zip(needed, self.caps_bytes, strict=True)
        return sum(max(0, need - cap) for need, cap in pairs)

    def _exact(self, *, fits_only: bool) -> Sizes | None:
        """Return the best partition with one stage per rank; None: none fits.

        Args:
            fits_only: only runs of layers within the cap of their rank.
        """
        works = np.full((self.num_layers + 1, self.num_layers + 1), np.inf)
        for first in range(self.num_layers):
            works[first, first + 1 :] = self.table.works_us(first, self.num_layers)
        times = [works / speed for speed in self.speeds]
        if fits_only:
            assert self.caps_bytes is not None
            caps = [self.caps_bytes[rank] for rank in self.placement.ranks[0]]
            needs = np.zeros_like(works)
            for first, end in zip(*np.nonzero(np.isfinite(works)), strict=True):
                needs[first, end] = self.table.need_bytes(int(first), int(end))
            pairs = zip(times, caps, strict=True)
            times = [np.where(needs <= cap, time, np.inf) for time, cap in pairs]
        least = _paths(times, np.maximum)[-1][0, -1]
        if not np.isfinite(least):
            return None
        squares = [np.where(time <= least, time**2, np.inf) for time in times]
        return _sizes(squares, _paths(squares, np.add))


def _paths(times: Sequence[_Array], combined: np.ufunc) -> list[_Array]:
    """Return by stage the least cost of the layers from 0 to each end, as a row."""
    costs = [times[0][:1]]
    for time in times[1:]:
        ways: _Array = combined(costs[-1].T, time)
        costs.append(ways.min(axis=0, keepdims=True))
    return costs


def _sizes(times: Sequence[_Array], costs: Sequence[_Array]) -> Sizes:
    """Return the stages of the path of least sum."""
    end = times[0].shape[1] - 1
    edges = [end]
    for stage in range(len(times) - 1, 0, -1):
        ways = costs[stage - 1][0] + times[stage][:, end]
        end = int(ways.argmin())
        edges.append(end)
    return tuple(np.diff([0, *edges[::-1]]).tolist())
