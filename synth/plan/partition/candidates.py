"""Candidate cuts: the partitions that users take, and those that suit some kind of schedule.

They are made without a search, from numbers of layers, times and bytes alone:

    equal numbers of layers    24 layers in 16 stages: 1 × 8, 2 × 8 and 2 × 8, 1 × 8, and spread
    the same, ends attached    embedding, 61 layers, head in 8 stages: 8 of the 61 each, the ends
                               beside the first and the last ones
    even by time, by memory    each stage for itself; and the first or the last half of the stages
                               with half as much, as suits placements with several stages per rank
    1F1B's memory              a stage has room for as many micro-batches as 1F1B holds there
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import BALANCE

_Array = npt.NDArray[Any]
Sizes = tuple[int, ...]


def candidate_cuts(table: StageCostTable, num_stages: int) -> list[Sizes]:
    """Return the candidate cuts into a number of stages, each once; equal numbers come first."""
    found = [
        *equal_cuts(table, num_stages),
        *_even_cuts(table, num_stages),
        _even_by_1f1b_memory(table, num_stages),
    ]
    return list(dict.fromkeys(found))


def equal_cuts(table: StageCostTable, num_stages: int) -> list[Sizes]:
    """Return the cuts into equal numbers of layers.

    Layers that are left over are on the last stages, the first ones, in the middle, or spread. The
    same for the layers between the ends that occur once, such as an embedding and a head.
    """
    num_layers = table.num_layers
    found = list(_equal(num_layers, num_stages))
    before, behind = attached_ends(table)
    if (before or behind) and (between := num_layers - before - behind) >= num_stages:
        for sizes in _equal(between, num_stages):
            ends = [0] * num_stages
            ends[0] += before
            ends[-1] += behind
            found.append(tuple(size + end for size, end in zip(sizes, ends, strict=True)))
    return list(dict.fromkeys(found))


def attached_ends(table: StageCostTable) -> tuple[int, int]:
    """Return the numbers of first and last layers that occur once, where others repeat."""
    names = [layer.profile for layer in table.profile.layers]
    is_single = [Counter(names)[name] == 1 for name in names]
    if all(is_single):
        return 0, 0
    return is_single.index(False), is_single[::-1].index(False)


def _equal(num_layers: int, num_stages: int) -> Iterator[Sizes]:
    each, more = divmod(num_layers, num_stages)
    gap = num_stages - more
    for first in (gap, 0, gap // 2):
        yield tuple(each + (first <= stage < first + more) for stage in range(num_stages))
    edges = [num_layers * stage // num_stages for stage in range(num_stages + 1)]
    yield tuple(np.diff(edges).tolist())


def _even_cuts(table: StageCostTable, num_stages: int) -> Iterator[Sizes]:
    """Yield cuts that are even by time and by memory, also with half as much in one half."""
    half = num_stages // 2
    shapes = [[1] * num_stages]
    if num_stages > 1:
        shapes += [[1] * half + [2] * (num_stages - half), [2] * half + [1] * (num_stages - half)]
    for up_to in (table.work_up_to, table.static_up_to + table.saved_up_to):
        for shares in shapes:
            yield nearest_cut(up_to, shares)


def nearest_cut(up_to: _Array, shares: Sequence[float]) -> Sizes:
    """Return the stages whose ends are nearest to their shares, each of a layer at least.

    Args:
        up_to: the sums over the layers before each one, and over all.
        shares: of each stage, in any unit.
    """
    num_layers, num_stages = len(up_to) - 1, len(shares)
    ends = np.cumsum(shares) / sum(shares) * float(up_to[-1])
    edges = [0]
    for stage in range(1, num_stages):
        nearest = int(np.argmin(np.abs(up_to - ends[stage - 1])))
        edges.append(min(max(nearest, edges[-1] + 1), num_layers - num_stages + stage))
    return tuple(np.diff([*edges, num_layers]).tolist())


def _even_by_1f1b_memory(table: StageCostTable, num_stages: int) -> Sizes:
    """Return the cut with nearly the least largest memory, if stages hold what 1F1B holds."""

    def packed(limit_bytes: float) -> Sizes | None:
        return _packed(table.num_layers, num_stages, need, limit_bytes)

    def need(stage: int, first: int) -> _Array:
        in_flight = num_stages - stage
        of_run = table.static_up_to[first:] - table.static_up_to[first]
        saved = table.saved_up_to[first:] - table.saved_up_to[first]
        sums: _Array = of_run + in_flight * saved
        return sums

    low, high = 0.0, float(need(0, 0)[-1])
    best = packed(high)
    for _ in range(BALANCE.halvings):
        middle = (low + high) / 2
        if (found := packed(middle)) is None:
            low = middle
        else:
            best, high = found, middle
    assert best is not None
    return best


def _packed(
    num_layers: int, num_stages: int, need: Callable[[int, int], _Array], limit: float
) -> Sizes | None:
    """Return stages as long as a limit allows, with a layer left for each behind; None: too long.

    Args:
        need: of a stage and its first layer, the needs of the runs from there, the empty one first.
        limit: that no stage may exceed.
    """
    edges = [0]
    for stage in range(num_stages):
        longest = int(np.searchsorted(need(stage, edges[-1]), limit, "right")) - 1
        if longest < 1:
            return None
        edges.append(min(edges[-1] + longest, num_layers - (num_stages - 1 - stage)))
    return tuple(np.diff(edges).tolist()) if edges[-1] == num_layers else None
