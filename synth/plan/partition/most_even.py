"""The most even partition with one stage per rank, by dynamic programming in two passes.

1. The least largest work of all partitions (the bottleneck).
2. Of the partitions with that largest work, the least sum of squares of the work. Of equal ones the
   first stage is as small as can be, then the second one, and so on.

A pass goes through the layers from the last one to the first. It takes runs of layers that begin
there, for all stages at once, and keeps the best end of each. So there is no table of all runs, and
only runs near the even partition are looked at (see `bands`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.plan.partition.bands import Band, Runs, nearly_even, runs_from_last
from synth.plan.partition.layer_run_memory import RunNeeds
from synth.plan.partition.stage_cost_table import StageCostTable

_Array = npt.NDArray[Any]

_NEVER = 1 << 62

# Of a run's work, F, B and W are each rounded by half a microsecond at most.
_ROUNDING_US = 1.5


class _Onward(NamedTuple):
    """For each stage and first layer, the least cost from there on, and the end that has it."""

    cost: _Array
    end: _Array

    def sizes(self) -> tuple[int, ...]:
        """The layers of each stage."""
        edges = [0]
        for stage in range(len(self.end)):
            edges.append(int(self.end[stage, edges[-1]]))
        return tuple(end - first for first, end in pairwise(edges))


ShouldStop = Callable[[], bool]


class Stopped(Exception):
    """A pass was stopped before its end."""


def most_even(
    table: StageCostTable,
    caps_bytes: Sequence[int | None],
    recompute: Collection[int],
    should_stop: ShouldStop = lambda: False,
) -> tuple[int, ...] | None:
    """The most even partition in which each stage keeps its cap, if there is one.

    Args:
        caps_bytes: one for each stage; None: no cap.
        recompute: stages whose work is R's time too.
        should_stop: asked at every layer.

    Raises:
        Stopped: it was told to stop.
    """
    search = _EvenPartition(table, caps_bytes, recompute, should_stop)
    bottleneck = search.onward(search.some_largest_us(), squares=False).cost[0, 0]
    if bottleneck >= _NEVER:
        return None
    return search.onward(int(bottleneck), squares=True).sizes()


def smallest_limit_bytes(
    table: StageCostTable, num_stages: int, should_stop: ShouldStop = lambda: False
) -> int:
    """The least over all partitions of the most that a stage needs.

    Raises:
        Stopped: it was told to stop.
    """
    num_layers, static = table.num_layers, table.static_up_to
    some = max(table.need_bytes(*run) for run in pairwise(nearly_even(static, num_stages)))
    needs = RunNeeds(table)
    cost = _costs(num_stages, num_layers)
    for runs in runs_from_last(num_layers, num_stages, [Band(static, some)]):
        if should_stop():
            raise Stopped
        need = needs.of_next(runs.stop)[runs.start - runs.first - 1 :]
        if not runs.is_empty:
            onward = np.maximum(need, cost[runs.next_stages, runs.ends])
            cost[runs.stages, runs.first] = onward.min(axis=1)
    return int(cost[0, 0])


def _costs(num_stages: int, num_layers: int, never: int = _NEVER) -> _Array:
    """Nothing is known, but that after the last stage there is no layer left."""
    dtype: Any = np.int64 if never == _NEVER else object  # whole numbers of any size
    cost = np.full((num_stages + 1, num_layers + 1), never, dtype)
    cost[num_stages, num_layers] = 0
    return cost


class _EvenPartition:
    """Works of runs and the caps, which leave out runs."""

    def __init__(
        self,
        table: StageCostTable,
        caps_bytes: Sequence[int | None],
        recompute: Collection[int],
        should_stop: ShouldStop,
    ) -> None:
        self.table, self.num_stages, self.should_stop = table, len(caps_bytes), should_stop
        self.with_r = np.array([stage in recompute for stage in range(self.num_stages)])
        given = [cap for cap in caps_bytes if cap is not None]
        self.has_caps = bool(given)
        self.caps = np.array([_NEVER if cap is None else cap for cap in caps_bytes], np.int64)
        self.bands = [Band(table.static_up_to, max(given))] if len(given) == self.num_stages else []

    def some_largest_us(self) -> int:
        """Upper bound on the largest work in the best partition."""
        edges: tuple[int, ...] = (0, self.table.num_layers)
        if not self.has_caps:
            edges = nearly_even(self.table.work_up_to, self.num_stages)
        with_r = bool(self.with_r.any())
        return max(self.table.work_us(*run, recompute=with_r) for run in pairwise(edges))

    def onward(self, most_us: int, *, squares: bool) -> _Onward:
        """The best way on from each stage and layer, no stage with more work than `most_us`.

        Args:
            squares: the cost is the sum of squares of the work, else the largest work.
        """
        never = max(_NEVER, self.num_stages * most_us**2 + 1) if squares else _NEVER
        cost = _costs(self.num_stages, self.table.num_layers, never)
        end = np.zeros(cost.shape, np.int32)[:-1]
        for runs, is_allowed in self._allowed(most_us):
            works = self._works(runs).astype(cost.dtype)
            rest = cost[runs.next_stages, runs.ends]
            costs = works * works + rest if squares else np.maximum(works, rest)
            costs = np.where(is_allowed & (works <= most_us), costs, never)
            best = costs.argmin(axis=1)
            cost[runs.stages, runs.first] = costs[np.arange(len(best)), best]
            end[runs.stages, runs.first] = runs.start + best
        return _Onward(cost, end)

    def _allowed(self, most_us: int) -> Iterator[tuple[Runs, _Array | bool]]:
        """All runs that the bands leave, with those of each stage that keep its cap."""
        bands = [*self.bands, Band(self.table.work_up_to, most_us, _ROUNDING_US)]
        needs = RunNeeds(self.table) if self.has_caps else None
        is_allowed: _Array | bool = True
        for runs in runs_from_last(self.table.num_layers, self.num_stages, bands):
            if self.should_stop():
                raise Stopped
            if needs is not None:
                need = needs.of_next(runs.stop)[runs.start - runs.first - 1 :]
                is_allowed = need <= self.caps[runs.stages, None]
            if not runs.is_empty:
                yield runs, is_allowed

    def _works(self, runs: Runs) -> _Array:
        """The work of each run, a row for each stage where stages differ in that."""
        behind = slice(runs.start - runs.first - 1, None)
        works = self.table.works_us(runs.first, runs.stop)[None, behind]
        with_r = self.with_r[runs.stages]
        if with_r.any():
            more = self.table.works_us(runs.first, runs.stop, recompute=True)[behind]
            works = np.where(with_r[:, None], more, works)
        return works
