"""List schedules made by compiled code, the same as those of `list_scheduling.Builder`."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from synth.objective import Objective, Spans
from synth.solver.evaluate.compiled import list_kernel
from synth.solver.evaluate.evaluate import never
from synth.solver.evaluate.list_arrays import KINDS, list_arrays
from synth.solver.evaluate.order_arrays import Ints
from synth.solver.improve.priority_rules import PriorityRule
from synth.solver.improve.uniform_intervals import at_uniform_intervals
from synth.solver.instance.instance import Instance, W
from synth.solver.instance.timing import ScoredOrders
from synth.solver.tuning import UNIFORM_INTERVALS


class _Built(NamedTuple):
    """The (copy, kind) of the ops by rank, the number of ops of each rank, and the value."""

    orders: Ints
    lengths: Ints
    value_us: int


class CompiledBuilder:
    """List scheduling of one instance; holds the arrays that all schedules share."""

    def __init__(self, instance: Instance, objective: Objective) -> None:
        self.instance, self.objective = instance, objective
        self._arrays = list_arrays(instance)
        counts = [copy.num_micro_batches for copy in instance.copies]
        self._most_ops = 3 * max(sum(counts[copy] for copy in held) for held in instance.held)

    def best(self, choices: Iterable[Sequence[PriorityRule]], most: int) -> list[ScoredOrders]:
        """Return the best orders of some rules, best first; those at a dead end are left out.

        Args:
            choices: in each the rules of all copies.
            most: the number of orders returned at most.
        """
        return _best((self._build(rules) for rules in choices), most)

    def best_at_uniform_intervals(
        self, most: int, should_stop: Callable[[], bool] = never
    ) -> list[ScoredOrders]:
        """Return the best orders whose micro-batches begin at a uniform interval, best first."""
        most_ops = UNIFORM_INTERVALS.most_compiled_ops
        found = at_uniform_intervals(self.instance, self._build, most_ops, should_stop)
        return _best(found, most)

    def _build(self, rules: Sequence[PriorityRule], interval_us: int = 0) -> _Built | None:
        """Schedule by rules; return None at a dead end."""
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
            interval_us,
        )
        if not is_whole:
            return None
        spans = Spans.of_ranks(
            (start, end + instance.step_us(rank))
            for rank, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
        )
        return _Built(orders, lengths, self.objective.value_us(spans))


def _best(built: Iterable[_Built | None], most: int) -> list[ScoredOrders]:
    found = sorted((one for one in built if one is not None), key=lambda one: one.value_us)
    return [_scored(one) for one in found[:most]]


def _scored(built: _Built) -> ScoredOrders:
    """Return orders by the names of their kinds."""
    orders = tuple(
        tuple((copy, KINDS[kind]) for copy, kind in order[:length].tolist())
        for order, length in zip(built.orders, built.lengths, strict=True)
    )
    return ScoredOrders(orders, built.value_us)
