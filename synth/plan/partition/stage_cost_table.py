"""Table of the costs of runs of layers as stages, each computed once."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from synth.costs.costs import Costs, IntArray
from synth.costs.partition_costs import at_speeds, partition_costs, stage_speeds, stage_ties
from synth.costs.stage_costs import StageCosts
from synth.op_kinds import OpKind
from synth.profile import Profile
from synth.schedule.model import Placement
from synth.solver.infeasibility import needed_bytes
from synth.solver.problem import Problem

_WORK = (OpKind.F, OpKind.B, OpKind.W)

# Names of the profiles of the layers, of the layer before and of the layer after; "" for none; and
# the layers of each of the tied parameters that several of the layers have, by their places.
_Content = tuple[tuple[str, ...], str, str, tuple[tuple[int, tuple[int, ...]], ...]]


class StageCostTable:
    """Costs of stages by first layer and end; runs of equal layers are computed once."""

    def __init__(self, profile: Profile, like: "StageCostTable | None" = None) -> None:
        """Prepare the sums; times are at speed 1, but for those of `costs_on`.

        Args:
            like: a table whose computed stages are shared; in its profile kinds of layers with the
                same name have the same costs.
        """
        self.rank_speeds = profile.rank_speeds
        self.profile = profile = profile.replace(rank_speeds=None)
        self.num_layers = len(profile.layers)
        self._names = [layer.profile for layer in profile.layers]
        self._stages: dict[_Content, StageCosts] = {} if like is None else like._stages
        self._needs: dict[_Content, int] = {}
        self._needs_of_runs: dict[tuple[int, int], int] = {}
        self._tied_places = profile.tied_places
        layers = [profile.layer_profile(index) for index in range(self.num_layers)]
        self._times = np.array(
            [[layer.time_us[kind].median_us for layer in layers] for kind in _WORK]
        )
        self._rebuild = np.array([layer.recompute_us for layer in layers])
        self.times_up_to = dict(
            zip((*_WORK, OpKind.R), map(_sums, (*self._times, self._rebuild)), strict=True)
        )
        self.work_up_to = _sums(self._times.sum(axis=0))
        # Of a run of layers at most what it has: each layer counts its part of what it shares.
        self.static_up_to = _sums(_static_parts(profile))
        self.saved_up_to = _sums(np.array([layer.saved_bytes for layer in layers]))

    def work_us(self, first: int, end: int, *, recompute: bool = False) -> int:
        """Return F + B + W of one micro-batch, and R if asked for."""
        return int(self.works_us(first, end, recompute=recompute)[-1])

    def works_us(self, first: int, stop: int, *, recompute: bool = False) -> IntArray:
        """Return the works of the runs from a layer to each end up to `stop`, shortest first."""
        own = slice(first, stop)
        # Summed one after the other, so that rounding does not depend on the array's length.
        times = np.rint(np.cumsum(self._times[:, own], axis=1)).astype(np.int64)
        works: IntArray = times.sum(axis=0)
        if recompute:
            works += np.rint(np.cumsum(self._rebuild[own])).astype(np.int64)
        return works

    def nearly_works_us(
        self, first: IntArray, end: IntArray, *, recompute: bool = False
    ) -> IntArray:
        """Return the works of many runs as differences of sums, at most 1 µs off per op."""
        works = np.zeros(np.broadcast(first, end).shape, np.int64)
        for kind in (*_WORK, OpKind.R) if recompute else _WORK:
            up_to = self.times_up_to[kind]
            works += np.rint(up_to[end] - up_to[first]).astype(np.int64)
        return works

    def unit_us(self, *, recompute: bool = False) -> int | None:
        """Return the work of each layer if all take equally long, else None."""
        times = np.vstack((self._times, self._rebuild)) if recompute else self._times
        return None if np.ptp(times, axis=1).any() else self.work_us(0, 1, recompute=recompute)

    def need_bytes(self, first: int, end: int) -> int:
        """Return the least memory of a rank that holds these layers and no others."""
        if (first, end) not in self._needs_of_runs:
            content = self._content(first, end)
            if content not in self._needs:
                stage, costs = self._in_context(first, end)
                self._needs[content] = needed_bytes(Problem.linear(costs, 1))[stage]
            self._needs_of_runs[first, end] = self._needs[content]
        return self._needs_of_runs[first, end]

    def costs(self, edges: tuple[int, ...]) -> Costs:
        """Return the costs of a partition, given by the first layer of each stage, and the end."""
        stages = tuple(self.stage(first, end) for first, end in pairwise(edges))
        ties = stage_ties(self.profile, np.diff(edges).tolist())
        return Costs(stages=stages, links=self.profile.links, ties=ties)

    def costs_on(self, sizes: Sequence[int], where: Placement) -> Costs:
        """Return the costs of a partition on a placement, whose ranks may differ in speed."""
        costs = self.costs((0, *accumulate(sizes)))
        if self.rank_speeds is None:
            return costs
        return at_speeds(costs, stage_speeds(self.rank_speeds, where.ranks))

    def stage(self, first: int, end: int) -> StageCosts:
        """Return the costs of layers first … end − 1 as a stage."""
        content = self._content(first, end)
        if content not in self._stages:
            stage, costs = self._in_context(first, end)
            self._stages[content] = costs.stages[stage]
        return self._stages[content]

    def _content(self, first: int, end: int) -> _Content:
        before = self._names[first - 1] if first else ""
        after = self._names[end] if end < self.num_layers else ""
        return tuple(self._names[first:end]), before, after, self._ties_within(first, end)

    def _ties_within(self, first: int, end: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the number of each of the tied parameters that several layers of a run have."""
        within = (
            (number, tuple(place - first for place in places if first <= place < end))
            for number, places in enumerate(self._tied_places)
        )
        return tuple((number, places) for number, places in within if len(places) > 1)

    def _in_context(self, first: int, end: int) -> tuple[int, Costs]:
        """Return a stage's number and costs between its neighbouring layers, which suffice.

        What a layer costs does not depend on its own neighbours' neighbours.
        """
        begin, stop = max(0, first - 1), min(self.num_layers, end + 1)
        part = self.profile.model_copy(update={"layers": self.profile.layers[begin:stop]})
        sizes = [size for size in (first - begin, end - first, stop - end) if size]
        return first - begin, partition_costs(part, sizes)


def _static_parts(profile: Profile) -> IntArray:
    """Return the static bytes of each layer, of tied parameters its part among their layers."""
    found = [profile.layer_profile(index).static_bytes for index in range(len(profile.layers))]
    for tied, places in zip(profile.tied_parameters or (), profile.tied_places, strict=True):
        for place in places:
            found[place] -= tied.static_bytes - tied.static_bytes // len(places)
    return np.array(found, dtype=np.int64)


def _sums(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return prefix sums over the layers."""
    sums: npt.NDArray[Any] = np.concatenate(([0], np.cumsum(values)))
    return sums
