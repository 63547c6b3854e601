"""Runs of layers that can be stages of a partition under a limit on each stage.

If no stage holds more than the limit, the first k stages hold at most k times the limit, and no
stage is farther below its share than all others can be above theirs. Layers that are alike leave a
narrow band of runs around the even partition.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.plan.tuning import BALANCE

_Array = npt.NDArray[Any]

# Sums are kept as floats, which are exact up to this share.
_EXACT_TO = 1e-9


class Band:
    """No stage holds more than `most` of what layers add up to."""

    def __init__(self, up_to: _Array, most: float, rounding: float = 0.0) -> None:
        """Prepare the sums.

        Args:
            up_to: the sum over the layers before each one, and over all.
            most: that a stage may hold.
            rounding: the most by which a stage may count less than the sum of its layers.
        """
        self.up_to, self.most, self.rounding = up_to.astype(np.float64), float(most), rounding
        self.total = float(self.up_to[-1])


class Runs(NamedTuple):
    """Runs of layers from `first` to any of the ends `start` … `stop`, as any of some stages."""

    first: int
    first_stage: int
    last_stage: int
    start: int
    stop: int

    @property
    def is_empty(self) -> bool:
        """True if no partition has such a run."""
        return self.first_stage > self.last_stage or self.start > self.stop

    @property
    def stages(self) -> slice:
        """The stages."""
        return slice(self.first_stage, self.last_stage + 1)

    @property
    def next_stages(self) -> slice:
        """The stage after each of them."""
        return slice(self.first_stage + 1, self.last_stage + 2)

    @property
    def ends(self) -> slice:
        """The ends."""
        return slice(self.start, self.stop + 1)


def runs_from_last(num_layers: int, num_stages: int, bands: Sequence[Band]) -> Iterator[Runs]:
    """The runs that begin at each layer, from the last layer to the first."""
    firsts = np.arange(num_layers)
    first_stages = np.maximum(np.minimum(firsts, 1), num_stages - (num_layers - firsts))
    last_stages = np.where(firsts > 0, np.minimum(firsts, num_stages - 1), 0)
    starts, stops = firsts + 1, num_layers - (num_stages - 1 - last_stages)
    for band in bands:
        before, most, up_to = band.up_to[:-1], max(band.most, 1.0), band.up_to
        slack = num_stages * band.rounding + _EXACT_TO * band.total
        least = band.total - (num_stages - 1) * most - slack
        behind = num_stages - (band.total - before - slack) / most
        first_stages = np.maximum(first_stages, np.ceil((before - slack) / most).astype(np.int64))
        last_stages = np.minimum(last_stages, np.floor(behind).astype(np.int64))
        starts = np.maximum(starts, np.searchsorted(up_to, before + least, "left"))
        stops = np.minimum(stops, np.searchsorted(up_to, before + most + slack, "right") - 1)
    columns = (firsts, first_stages, last_stages, starts, stops)
    yield from map(Runs, *(column[::-1].tolist() for column in columns))


def nearly_even(up_to: _Array, num_stages: int) -> tuple[int, ...]:
    """The edges of stages whose largest sum is nearly the least, by bisection of a limit."""
    low, high = 0.0, float(up_to[-1])
    sums = up_to.astype(np.float64)
    for _ in range(BALANCE.halvings):
        middle = (low + high) / 2
        if _edges_within(sums, num_stages, middle) is None:
            low = middle
        else:
            high = middle
    edges = _edges_within(sums, num_stages, high)
    assert edges is not None
    return edges


def _edges_within(up_to: _Array, num_stages: int, most: float) -> tuple[int, ...] | None:
    """Stages as long as a limit allows, with a layer left for each stage behind, if that ends."""
    edges, num_layers = [0], len(up_to) - 1
    for behind in reversed(range(num_stages)):
        end = int(np.searchsorted(up_to, up_to[edges[-1]] + most, "right")) - 1
        edges.append(min(end, num_layers - behind))
        if edges[-1] <= edges[-2]:
            return None
    return tuple(edges) if edges[-1] == num_layers else None
