"""The exact model for CP-SAT, put together from variables, constraints and an objective.

It is fast by what `constraints` describes, and by a complete feasible hint, which gives the horizon
too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from synth.objective import Objective, Spans
from synth.solver.cpsat.constraints import add_memory, add_one_at_a_time, add_order
from synth.solver.cpsat.links import LinkConstraints
from synth.solver.cpsat.op_variables import AddStarts, OpVariables, add_starts
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.passing_pairs import add_passing_pairs
from synth.solver.cpsat.spans import Minimise, minimise_spans
from synth.solver.instance.instance import F, Instance, OpIndex
from synth.solver.instance.timing import TimedOrders
from synth.solver.tuning import EXACT_MODEL


class ExactModel:
    """A CP-SAT model of some ranks, minimising makespan, period or a sum of both.

    With all ranks it is the whole problem. With fewer it is a relaxation: the ranks outside become
    delays, because they cannot be faster than empty ranks. A bound may minimise something else.

    Attributes:
        ops: the variables.
        infeasible: True if some op never fits in memory.
        value: what is minimised.
        tune: sets parameters of CP-SAT that suit the model.
    """

    def __init__(
        self,
        instance: Instance,
        objective: Objective,
        horizon_us: int,
        scope: Iterable[int] | None = None,
        *,
        fusible: bool = False,
        passing_pairs: bool = False,
        starts: AddStarts = add_starts,
        minimise: Minimise | None = None,
        most_counted: int = EXACT_MODEL.most_counted_ops,
        tune: Callable[[cp_model.SatParameters], None] = lambda _: None,
    ) -> None:
        """Put the model together.

        Args:
            objective: what is minimised, unless `minimise` is given.
            horizon_us: upper limit of the objective.
            scope: the modelled ranks; all by default.
            fusible: let the search decide which B and W to fuse, on ranks with one stage copy or
                with few ops.
            passing_pairs: let ranks outside run one F or B at a time (see `passing_pairs`).
            minimise: adds another objective.
            most_counted: ops of a rank up to which the order of each pair is a literal.
            tune: sets parameters of CP-SAT that suit the model.
        """
        longest_us = instance.longest_us(objective, horizon_us)
        ranks = range(instance.num_ranks) if scope is None else scope
        self.ops = ops = OpVariables(instance, ranks, objective, longest_us)
        self.tune = tune
        starts(ops)
        if fusible:
            ops.add_fusions(most_counted)
        for copy in ops.copies:
            add_order(ops, copy)
        self.infeasible = False
        for rank in ops.ranks:
            add_one_at_a_time(ops, rank)
            self.infeasible |= not add_memory(ops, rank, most_counted)
        LinkConstraints(ops).add()
        if passing_pairs:
            add_passing_pairs(ops.cp, instance, ops.copies, ops.start)
        self.value, self.spans = (minimise or partial(minimise_spans, horizon_us=horizon_us))(ops)

    @property
    def cp(self) -> cp_model.CpModel:
        """CP-SAT's model."""
        return self.ops.cp

    def at_least(self, bound_us: int) -> None:
        """Add a bound of the objective proven elsewhere."""
        self.cp.add(self.value >= bound_us)

    def both_at_least(self, bounds: Spans) -> None:
        """Add a bound of each summand, if the objective is a sum."""
        if self.ops.objective.is_sum:
            for span, bound_us in zip(self.spans, bounds, strict=True):
                self.cp.add(span.length >= bound_us)

    def hint(self, timing: TimedOrders, value_us: int) -> None:
        """Hint a complete solution."""
        instance = self.ops.instance
        for node, start in self.ops.start.items():
            self._hint(start, timing.starts[node])
        for rank, origin in self.ops.origin.items():
            if not isinstance(origin, int):
                firsts = [timing.starts[c, OpIndex(F, 0)] for c in instance.held[rank]]
                self._hint(origin, min(firsts))
        for fusion in self.ops.fusions.values():
            fusion.hint(timing.fused)
        self._hint(self.value, value_us)
        if self.ops.objective.is_sum:
            for span, length_us in zip(self.spans, timing.spans(instance), strict=True):
                self._hint(span.length, length_us)

    def _hint(self, variable: cp_model.LinearExprT, value: int) -> None:
        if not isinstance(variable, cp_model.IntVar):
            raise TypeError("a model whose starts or value are expressions takes no hint")
        self.cp.add_hint(variable, value)

    def read(self, value: Callable[[cp_model.LinearExprT], int]) -> TimedOrders:
        """Return the solution.

        Args:
            value: looks up the value of a variable.
        """
        pairs = [pair for fusion in self.ops.fusions.values() for pair in fusion.chosen(value)]
        starts = {key: value(start) for key, start in self.ops.start.items()}
        return TimedOrders(starts, frozenset(pairs))
