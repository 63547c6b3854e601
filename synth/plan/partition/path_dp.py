"""Partitions as paths: rank after rank takes a run of layers, and each run has a lower bound.

The bound of a partition is the largest one on its path.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

Sizes = tuple[int, ...]

# Infinity: no schedule at all.
NEVER = 1 << 60


class RankLayers(NamedTuple):
    """A rank that holds the layers from `first` to `end` − 1."""

    rank: int
    first: int
    end: int


class Least(NamedTuple):
    """The least lower bound and a partition that has it; None: there is no partition left."""

    bound_us: int
    sizes: Sizes | None


def runs_of(sizes: Sizes) -> Iterator[RankLayers]:
    """Yield the run of layers of each rank."""
    first = 0
    for rank, size in enumerate(sizes):
        yield RankLayers(rank, first, first + size)
        first += size


class PartitionPaths:
    """All partitions of the layers among the ranks, with stage k on rank k."""

    def __init__(self, num_ranks: int, num_layers: int, bound: Callable[[RankLayers], int]) -> None:
        """Set the first bound of every run."""
        self.num_ranks = num_ranks
        # Each rank before and after needs a layer, which limits first layers and lengths.
        self.slack = num_layers - num_ranks
        self._bounds_us = [
            [
                [bound(RankLayers(rank, first, end)) for end in self._ends(rank, first)]
                for first in self._firsts(rank)
            ]
            for rank in range(num_ranks)
        ]

    def _firsts(self, rank: int) -> range:
        return range(rank, rank + (self.slack if rank else 0) + 1)

    def _ends(self, rank: int, first: int) -> range:
        most = rank + self.slack + 1
        return range(first + 1 if rank < self.num_ranks - 1 else most, most + 1)

    def _place(self, run: RankLayers) -> tuple[list[int], int]:
        of_first = self._bounds_us[run.rank][run.first - run.rank]
        return of_first, run.end - self._ends(run.rank, run.first)[0]

    def __getitem__(self, run: RankLayers) -> int:
        bounds_us, place = self._place(run)
        return bounds_us[place]

    def __setitem__(self, run: RankLayers, bound_us: int) -> None:
        bounds_us, place = self._place(run)
        bounds_us[place] = bound_us

    def bound_us(self, sizes: Sizes) -> int:
        """Return the bound of a partition, the largest one on its path."""
        return max((self[run] for run in runs_of(sizes)), default=0)

    def least(self, without: Collection[Sizes] = ()) -> Least:
        """Return the least bound, and a partition with it, some left out.

        Of equal ones, an even one is taken: the least sum of eighth powers of its bounds.
        """
        branches = list(self._branches(self._onward(max), (), 0, tuple(without)))
        bound_us = min((of_branch for of_branch, _ in branches), default=NEVER)
        if bound_us >= NEVER:
            return Least(NEVER, None)

        def join(own_us: float, rest: float) -> float:
            return math.inf if own_us > bound_us else (own_us / max(1, bound_us)) ** 8 + rest

        onward = self._onward(join)

        def total(begun: Sizes) -> float:
            rest = onward[len(begun)][sum(begun) - len(begun)]
            for run in runs_of(begun):
                rest = join(self[run], rest)
            return rest

        begun = min((begun for of_branch, begun in branches if of_branch == bound_us), key=total)
        while len(begun) < self.num_ranks:
            ends = self._ends(len(begun), sum(begun))
            begun = min(((*begun, end - sum(begun)) for end in ends), key=total)
        return Least(bound_us, begun)

    def _onward(self, join: Callable[[float, float], float]) -> list[list[float]]:
        """Return for each rank and first layer the least bound of the rest of a path."""
        onward: list[list[float]] = [[0] * (self.slack + 1)]
        for rank in range(self.num_ranks - 1, -1, -1):
            rest = onward[0]
            if rank == self.num_ranks - 1:
                here = [join(bounds_us[0], 0) for bounds_us in self._bounds_us[rank]]
            else:
                here = [
                    min(map(join, bounds_us, rest[place:]))
                    for place, bounds_us in enumerate(self._bounds_us[rank])
                ]
            onward.insert(0, here)
        return onward

    def _branches(
        self, onward: list[list[float]], begun: Sizes, so_far_us: int, without: tuple[Sizes, ...]
    ) -> Iterator[tuple[int, Sizes]]:
        """Yield the least bounds of the branches of paths that avoid all partitions left out."""
        rank, first = len(begun), sum(begun)
        if not without:
            yield max(so_far_us, round(onward[rank][first - rank])), begun
        elif rank < self.num_ranks:
            same = defaultdict(list)
            for sizes in without:
                same[sizes[rank]].append(sizes)
            for end in self._ends(rank, first):
                length, own_us = end - first, self[RankLayers(rank, first, end)]
                yield from self._branches(
                    onward, (*begun, length), max(so_far_us, own_us), tuple(same[length])
                )
