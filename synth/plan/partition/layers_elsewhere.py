"""Least times of the layers on other ranks, however these are partitioned.

A bound of one rank's run of layers (`partition.bounds`) knows no more of the others than that.

On ranks of unequal speed the least time of F, or of B, through the ranks before or behind is a
shortest path from run to run. In a schedule within a value no rank works longer than that, which
leaves out runs that put all layers on the fastest ranks. So such a bound is one of schedules within
the value: it holds for all as far as it does not exceed the value.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from synth.op_kinds import OpKind
from synth.plan.partition.path_dp import RankLayers
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.solver.instance.instance import BW, STEP, B, F, W
from synth.solver.instance.stage_copy import StageCopy

_Array = npt.NDArray[np.float64]

# Sums of times that are no whole numbers are exact to so many microseconds.
_TINY_US = 1e-3


class WayThrough(NamedTuple):
    """From the end of F to where the gradient is made, and from there to where B can start."""

    down_us: int
    up_us: int


class _LeastSums(NamedTuple):
    """The least sums of an op's times by rank and layer: of the ranks and layers before, or from.

    A sum is infinite where no such ranks hold such layers.
    """

    before: Sequence[_Array]
    behind: Sequence[_Array]


class LayersElsewhere:
    """Least times of the layers on other ranks, however they are partitioned.

    Attributes:
        within_us: no rank works as long as that on a micro-batch; None: for any time.
    """

    def __init__(self, table: StageCostTable, num_ranks: int) -> None:
        profile, self.num_ranks = table.profile, num_ranks
        self.links = profile.links
        self.speeds = table.rank_speeds or (1.0,) * num_ranks
        layers = [profile.layer_profile(index).time_us for index in range(len(profile.layers))]
        median = [{kind: timing.median_us for kind, timing in time.items()} for time in layers]
        self.forward = [times[F] for times in median]
        # As in `relaxed_for_fusion`: BW may be shorter than B, or than B and W.
        self.backward = [min(times[B], times[BW]) for times in median]
        self.weight = [
            max(0.0, min(times[W], times[BW] - backward))
            for times, backward in zip(median, self.backward, strict=True)
        ]
        self.step = [times.get(OpKind.STEP, 0.0) for times in median]
        self.is_whole = all(us == int(us) for times in median for us in times.values())
        ends = range(1, len(layers))
        stages = [table.stage(end - 1, end) for end in ends]
        self.output = [0, *(stage.output_bytes for stage in stages)]
        self.returned = [0, *(stage.returned_bytes for stage in stages)]
        self.within_us: float | None = None
        self._sums = self._least_sums(None)

    def keep_within(self, most_us: float | None) -> None:
        """Assume that no rank works as long as `most_us` on a micro-batch; None: assume nothing.

        It matters where ranks differ in speed.
        """
        if most_us != self.within_us and len({*self.speeds}) > 1:
            self.within_us = most_us
            self._sums = self._least_sums(most_us)

    def is_possible(self, run: RankLayers) -> bool:
        """Return False if no partition with this run keeps the assumption on other ranks."""
        sums = self._sums[F]
        ends = sums.before[run.rank][run.first], sums.behind[run.rank + 1][run.end]
        return bool(np.isfinite(ends).all())

    def work_us(self, run: RankLayers) -> int:
        """F, B and W of one micro-batch."""
        own = slice(run.first, run.end)
        both = map(add, self.backward[own], self.weight[own])
        speed = self.speeds[run.rank]
        # F is rounded once, B and W each, and so they are where both are BW's.
        return self._least_us(self.forward[own], 1, speed) + self._least_us(both, 2, speed)

    def before(self, run: RankLayers, copy: StageCopy) -> StageCopy:
        """One stage copy in place of all ranks before: no F or B comes sooner from them.

        Their slowest F takes no less than their mean; no stage takes less than its least layer.
        """
        above, speed = slice(0, run.first), max(self.speeds[: run.rank])
        forward_us, backward_us = (
            _whole_us(self._sums[kind].before[run.rank][run.first]) for kind in (F, B)
        )
        rounding_us = max(map(self._rounding_us, self.speeds[: run.rank]))
        mean_us = sum(self.forward[above]) / sum(self.speeds[: run.rank]) - rounding_us
        slowest_us = min(forward_us, max(0, math.floor(mean_us)))
        least_us = self._least_us([min(self.backward[above])], 1, speed)
        way = self._hops_us(0, run.rank - 1, run.first)
        # W may be BW less B, both rounded.
        weight_us = self._least_us([min(self.weight[above])], 2, speed)
        step_us = self._least_us([min(self.step[above])], 1, speed)
        duration = {
            F: slowest_us,
            B: least_us,
            W: weight_us,
            BW: least_us + weight_us,
            STEP: step_us,
        }
        return copy._replace(
            duration_us=duration,
            down_us=way.down_us + forward_us - slowest_us,
            up_us=way.up_us + max(0, backward_us - least_us),
            passing_us=0,
        )

    def way_behind_us(self, run: RankLayers) -> WayThrough:
        """Through all later layers, and back."""
        way = self._hops_us(self.num_ranks - 2, run.rank, run.end)
        down_us, up_us = (
            _whole_us(self._sums[kind].behind[run.rank + 1][run.end]) for kind in (F, B)
        )
        return WayThrough(way.down_us + down_us, way.up_us + up_us)

    def transfers_us(self, run: RankLayers) -> tuple[int, int]:
        """The transfers of a micro-batch from the rank of a run to the next one, and back."""
        here, there = run.rank, run.rank + 1
        return (
            self.links.between(here, there).transfer_us(self.output[run.end]),
            self.links.between(there, here).transfer_us(self.returned[run.end]),
        )

    def _hops_us(self, farthest: int, nearest: int, edge: int) -> WayThrough:
        """The transfers from rank to rank: at the nearest one the layer before `edge` is sent.

        Elsewhere it may be any layer's output, so the smallest one.
        """
        low, high = sorted((farthest, nearest))
        down_us = up_us = 0
        for rank in range(low, high + 1):
            size, back = (
                sizes[edge] if rank == nearest else min(sizes[1:])
                for sizes in (self.output, self.returned)
            )
            down_us += self.links.between(rank, rank + 1).transfer_us(size)
            up_us += self.links.between(rank + 1, rank).transfer_us(back)
        return WayThrough(down_us, up_us)

    def _least_sums(self, most_us: float | None) -> dict[OpKind, _LeastSums]:
        """Return the least sums of F and of B, of ranks that work less than `most_us`."""
        num_layers = len(self.forward)
        firsts, ends = np.indices((num_layers + 1, num_layers + 1))
        is_run = firsts < ends
        works = self._works_at_least_us()
        allowed = [is_run if most_us is None else is_run & (work < most_us) for work in works]
        sums = {}
        for kind, each in ((F, self.forward), (B, self.backward)):
            up_to = np.array([0.0, *accumulate(each)])
            times = [
                np.where(may, (up_to - up_to[:, None]) / speed - self._rounding_us(speed), np.inf)
                for may, speed in zip(allowed, self.speeds, strict=True)
            ]
            start = np.full(num_layers + 1, np.inf)
            start[0] = 0
            before = [*accumulate(times, _least, initial=start)]
            onward = (own.T for own in reversed(times))
            behind = [*accumulate(onward, _least, initial=start[::-1])]
            sums[kind] = _LeastSums(before, behind[::-1])
        return sums

    def _works_at_least_us(self) -> Iterator[_Array]:
        """Yield for each rank no more than its work of a micro-batch, by first layer and end."""
        each = map(add, map(add, self.forward, self.backward), self.weight)
        up_to = np.array([0.0, *accumulate(each)])
        for speed in self.speeds:
            # F, B and W are rounded each.
            yield (up_to - up_to[:, None]) / speed - 3 * self._rounding_us(speed)

    def _rounding_us(self, speed: float) -> float:
        """Return the most that rounding takes off a time of a stage on a rank of this speed."""
        rounding_us = 0.0 if self.is_whole else 0.5 + _TINY_US
        return rounding_us if speed == 1 else rounding_us / speed + 0.5 + _TINY_US

    def _least_us(self, times_us: Iterable[float], roundings: int, speed: float) -> int:
        """No more than layers take in stages whose times are rounded to whole microseconds.

        Args:
            times_us: of the layers, at speed 1.
            roundings: the number of rounded times in the sums and differences that make the
                stages' times; at another speed than 1 they are rounded once more.
            speed: of the ranks.
        """
        rounding_us = 0.0 if self.is_whole else roundings / 2
        if speed != 1:
            rounding_us = rounding_us / speed + roundings / 2
        return max(0, math.ceil(sum(times_us) / speed - rounding_us - _TINY_US * bool(rounding_us)))


def _least(so_far: _Array, own: _Array) -> _Array:
    """Return the least sums with one more rank, whose times are by one edge and the other."""
    least: _Array = (so_far[:, None] + own).min(axis=0)
    return least


def _whole_us(least_us: float) -> int:
    """Return the least number of whole microseconds."""
    return max(0, math.ceil(least_us - _TINY_US))
