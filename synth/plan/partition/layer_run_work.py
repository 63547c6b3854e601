"""Works of many runs of layers at once, for local search over partitions."""

import numpy as np

from synth.costs.costs import IntArray
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import BALANCE


class RunWorks:
    """Works by first layer and end.

    Up to 2,000 layers they are exactly those of the stage table. With more layers they are
    differences of prefix sums, which may be off by a microsecond of rounding. If all layers take
    equally long, they are multiples of one layer's work: rounding is no reason to prefer a run.
    """

    def __init__(self, table: StageCostTable) -> None:
        self._table, self._all = table, dict[bool, IntArray]()
        self._unit_us = {each: table.unit_us(recompute=each) for each in (False, True)}
        self.up_to = np.concatenate(([0], table.works_us(0, table.num_layers)))

    def of(self, first: IntArray, end: IntArray, *, recompute: bool = False) -> IntArray:
        """Return the work of layers first … end − 1, with R if asked for, for arrays of both."""
        if (unit_us := self._unit_us[recompute]) is not None:
            units: IntArray = (end - first) * max(1, unit_us)
            return units
        if self._table.num_layers > BALANCE.most_layers_in_table:
            return self._table.nearly_works_us(first, end, recompute=recompute)
        if recompute not in self._all:
            self._all[recompute] = self._of_all(recompute=recompute)
        works: IntArray = self._all[recompute][first, end]
        return works

    def _of_all(self, *, recompute: bool) -> IntArray:
        size = self._table.num_layers
        works = np.zeros((size + 1, size + 1), np.int64)
        for first in range(size):
            works[first, first + 1 :] = self._table.works_us(first, size, recompute=recompute)
        return works
