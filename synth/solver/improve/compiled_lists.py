"""List schedules made by compiled code, the same as those of `list_scheduling.Builder`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from synth.objective import Objective, Spans
from synth.solver.evaluate.compiled import list_kernel
from synth.solver.evaluate.list_arrays import KINDS, list_arrays
from synth.solver.evaluate.order_arrays import Ints
from synth.solver.improve.priority_rules import PriorityRule
from synth.solver.instance.instance import Instance, W
from synth.solver.instance.timing import ScoredOrders
from synth.solver.tuning import LIST_SCHEDULING, RELEASE_DATES


class CompiledList(NamedTuple):
    """The (copy, kind) of the ops by rank, the number of ops of each rank, and the value."""

    orders: Ints
    lengths: Ints
    value_us: int


class CompiledBuilder:
    """List scheduling of one instance; holds the arrays that all schedules share."""

    relative_speed = LIST_SCHEDULING.compiled_speed
    most_dated_ops = RELEASE_DATES.most_compiled_ops

    def __init__(self, instance: Instance, objective: Objective) -> None:
        self.instance, self.objective = instance, objective
        self._arrays = list_arrays(instance)
        self._most = max(copy.num_micro_batches for copy in instance.copies)
        counts = [copy.num_micro_batches for copy in instance.copies]
        self._most_ops = 3 * max(sum(counts[copy] for copy in held) for held in instance.held)

    def build(
        self, rules: Sequence[PriorityRule], releases_us: Sequence[int] = ()
    ) -> CompiledList | None:
        """Schedule by rules, from release dates on; return None at a dead end."""
        instance = self.instance
        rows = [
            (rule.limit, rule.forward_first, rule.backlog, rule.fused, rule.eager) for rule in rules
        ]
        patience_us = [
            rule.patience * copy.duration_us[W]
            for rule, copy in zip(rules, instance.copies, strict=True)
        ]
        orders, lengths, starts, ends, is_whole = list_kernel.build(
            self._arrays,
            np.array(rows, np.int64),
            np.array(patience_us, np.float64),
            self._most_ops,
            np.array(releases_us or (0,) * self._most, np.int64),
        )
        if not is_whole:
            return None
        spans = Spans.of_ranks(
            (start, end + instance.step_us(rank))
            for rank, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
        )
        return CompiledList(orders, lengths, self.objective.value_us(spans))

    def scored(self, built: CompiledList) -> ScoredOrders:
        """Return orders by the names of their kinds."""
        orders = tuple(
            tuple((copy, KINDS[kind]) for copy, kind in order[:length].tolist())
            for order, length in zip(built.orders, built.lengths, strict=True)
        )
        return ScoredOrders(orders, built.value_us)
