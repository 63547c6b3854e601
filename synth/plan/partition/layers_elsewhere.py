"""Least times of the layers on other ranks, however these are partitioned.

A bound of one rank's run of layers (`partition.bounds`) knows no more of the others than that.
"""

import math
from collections.abc import Iterable
from operator import add
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.plan.partition.path_dp import RankLayers
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.solver.instance.instance import BW, STEP, B, F, W
from synth.solver.instance.stage_copy import StageCopy

# Sums of times that are no whole numbers are exact to so many microseconds.
_TINY_US = 1e-3


class WayThrough(NamedTuple):
    """From the end of F to where the gradient is made, and from there to where B can start."""

    down_us: int
    up_us: int


class LayersElsewhere:
    """Least times of the layers on other ranks, however they are partitioned.

    Of ranks of unequal speed, layers on other ranks take the time of the fastest one that may hold
    them.
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

    def work_us(self, run: RankLayers) -> int:
        """F, B and W of one micro-batch."""
        own = slice(run.first, run.end)
        both = map(add, self.backward[own], self.weight[own])
        _, speed, _ = self.fastest(run)
        # F is rounded once, B and W each, and so they are where both are BW's.
        return self._least_us(self.forward[own], 1, speed) + self._least_us(both, 2, speed)

    def fastest(self, run: RankLayers) -> tuple[float, float, float]:
        """The largest speed of the ranks before the one of a run, its own, and of those behind."""
        before, behind = self.speeds[: run.rank], self.speeds[run.rank + 1 :]
        return max(before, default=1.0), self.speeds[run.rank], max(behind, default=1.0)

    def before(self, run: RankLayers, copy: StageCopy) -> StageCopy:
        """One stage copy in place of all ranks before: no F or B comes sooner from them.

        Their slowest F takes no less than their mean; no stage takes less than its least layer.
        """
        above, (speed, _, _) = slice(0, run.first), self.fastest(run)
        forward_us = self._least_us(self.forward[above], run.rank, speed)
        backward_us = self._least_us(self.backward[above], run.rank, speed)
        mean_us = forward_us // run.rank
        least_us = self._least_us([min(self.backward[above])], 1, speed)
        way = self._hops_us(0, run.rank - 1, run.first)
        # W may be BW less B, both rounded.
        weight_us = self._least_us([min(self.weight[above])], 2, speed)
        step_us = self._least_us([min(self.step[above])], 1, speed)
        duration = {F: mean_us, B: least_us, W: weight_us, BW: least_us + weight_us, STEP: step_us}
        return copy._replace(
            duration_us=duration,
            down_us=way.down_us + forward_us - mean_us,
            up_us=way.up_us + max(0, backward_us - least_us),
            passing_us=0,
        )

    def way_behind_us(self, run: RankLayers) -> WayThrough:
        """Through all later layers, and back."""
        behind, ranks = slice(run.end, None), self.num_ranks - 1 - run.rank
        _, _, speed = self.fastest(run)
        way = self._hops_us(self.num_ranks - 2, run.rank, run.end)
        return WayThrough(
            way.down_us + self._least_us(self.forward[behind], ranks, speed),
            way.up_us + self._least_us(self.backward[behind], ranks, speed),
        )

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
