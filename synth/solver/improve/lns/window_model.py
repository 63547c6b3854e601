"""The model of one window of time: constants before it, variables in it, tails after it.

    time   | before            | window            | after
    order  | fixed             | free, by CP-SAT   | fixed, after the window's ops on each rank
    memory | unchanged         | within the cap    | unchanged: the same ops precede each op

The part after the window is a fixed graph, so it enters the model only as each op's tail (Carlier
1982), the longest path from its end to the end of the schedule. The model stays as small as the
window.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from synth.solver.cpsat.constraints import limit_many_stages
from synth.solver.cpsat.memory.precedences import requirements
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import decide
from synth.solver.instance.earliest_start import EarliestStart
from synth.solver.instance.event_graph import NONE, Graph
from synth.solver.instance.tails import Tails
from synth.solver.tuning import EXACT_MODEL

# Precedences, all of which hold: (sooner, later).
_Alternative: TypeAlias = tuple[tuple[int, int], ...]

Required = Mapping[int, tuple[_Alternative, ...]]


def required_by(graph: Graph) -> Required:
    """Return by op the alternatives of precedences that memory requires, one of which must hold.

    Only for ranks that hold one stage copy.
    """
    instance = graph.instance
    return {
        graph.number((index, asked.op_index)): tuple(
            tuple(
                (graph.number((index, sooner)), graph.number((index, later)))
                for sooner, later in alternative
            )
            for alternative in asked.alternatives
        )
        for index, copy in enumerate(instance.copies)
        if instance.is_alone(index)
        for asked in requirements(copy, instance.headroom_of(index))
    }


class Change(NamedTuple):
    """A new order of consecutive ops of a rank: their first place, the old order, the new one."""

    rank: int
    first: int
    before: list[int]
    after: list[int]

    def apply(self, order: list[int]) -> list[int] | None:
        """Return the rank's order with the change; None if these ops have changed since."""
        end = self.first + len(self.before)
        if order[self.first : end] != self.before:
            return None
        return [*order[: self.first], *self.after, *order[end:]]


class Window:
    """A CP-SAT model of a run of the sequence.

    Args:
        earliest_start: the whole schedule.
        tails: the tails of each span that counts.
        required: see `required_by`.
        free: ranks whose order may change.
    """

    def __init__(
        self,
        earliest_start: EarliestStart,
        tails: Sequence[Tails],
        required: Required,
        ops: Sequence[int],
        free: Collection[int],
    ) -> None:
        self.earliest_start, self.graph, self.required = (
            earliest_start,
            earliest_start.graph,
            required,
        )
        self.ops = frozenset(ops)
        self.cp = cp_model.CpModel()
        self.start: dict[int, cp_model.IntVar] = {}
        self.spent_s = 0.0
        self.inside: dict[int, list[int]] = {}
        for op in ops:
            self.inside.setdefault(self.graph.rank[op], []).append(op)
        for rank, own in self.inside.items():
            self._add_rank(rank, own, rank in free)
        self._add_transfers()
        self._minimise(tails)

    def _add_rank(self, rank: int, ops: list[int], is_free: bool) -> None:
        """Free the order of a rank's ops in the window, or fix it."""
        earliest_start = self.earliest_start
        first = earliest_start.index[ops[0]]
        earliest = earliest_start.end_us(earliest_start.orders[rank][first - 1]) if first else 0
        for op in ops:
            self.start[op] = self.cp.new_int_var(earliest, 2 * earliest_start.spans.makespan_us, "")
            self.cp.add_hint(self.start[op], earliest_start.starts[op])
        if not is_free:
            for op, following in pairwise(ops):
                self._precede(op, following)
            return
        durations_us = self.graph.duration_us
        self.cp.add_no_overlap(
            self.cp.new_fixed_size_interval_var(self.start[op], durations_us[op], "") for op in ops
        )
        for op in ops:
            self._add_order(op)
        self._add_memory(rank, ops, earliest_start.usage_bytes[rank][first])

    def _add_order(self, op: int) -> None:
        """F, B, W of a micro-batch in order, each kind in order."""
        for following in self.graph.following(op):
            if following in self.ops:
                self._precede(op, following)

    def _add_memory(self, rank: int, ops: Sequence[int], usage_bytes: int) -> None:
        instance, nodes = self.graph.instance, self.graph.nodes
        headroom = instance.headroom_bytes[rank]
        if headroom is None:
            return
        if len(instance.held[rank]) == 1:
            for op in ops:
                self._add_requirement(self.required.get(op, ()))
            return
        peaks_above = (
            instance[copy].peak_above_bytes[op_index.kind]
            for copy, op_index in (nodes[op] for op in ops)
        )
        if usage_bytes + sum(max(0, peak_above) for peak_above in peaks_above) <= headroom:
            return
        limit_many_stages(
            self.cp,
            instance,
            {nodes[op]: self.start[op] for op in ops},
            {nodes[op]: self._end(op) for op in ops},
            headroom,
            EXACT_MODEL.most_counted_ops_of_window,
            usage_bytes,
            {nodes[op]: self.earliest_start.place[op] for op in ops},
        )

    def _add_requirement(self, alternatives: Sequence[_Alternative]) -> None:
        """Let one alternative hold; precedences with ops outside the window are decided already."""
        open_ones: list[_Alternative] = []
        for alternative in alternatives:
            undecided = self._undecided(alternative)
            if undecided == ():
                return
            if undecided is not None:
                open_ones.append(undecided)
        choices = [self.cp.new_bool_var("") for _ in open_ones]
        for choice, alternative in zip(choices, open_ones, strict=True):
            for sooner, later in alternative:
                self._precede(sooner, later).only_enforce_if(choice)
        if choices:
            self.cp.add_bool_or(choices)

    def _undecided(self, alternative: _Alternative) -> _Alternative | None:
        """Return the part of an alternative that the window decides; None if the rest fails."""
        undecided: list[tuple[int, int]] = []
        place = self.earliest_start.place
        for sooner, later in alternative:
            if sooner in self.ops and later in self.ops:
                undecided.append((sooner, later))
            elif place[sooner] > place[later]:
                return None
        return tuple(undecided)

    def _precede(self, sooner: int, later: int) -> cp_model.Constraint:
        return self.cp.add(self.start[later] >= self._end(sooner))

    def _end(self, op: int) -> cp_model.LinearExpr:
        return self.start[op] + self.graph.duration_us[op]

    def _add_transfers(self) -> None:
        """Let ops wait for inputs made before the window or in it."""
        graph = self.graph
        for op, start in self.start.items():
            made = graph.source[op]
            if made != NONE:
                at = self.start.get(made, self.earliest_start.starts[made])
                self.cp.add(start >= at + (graph.duration_us[made] + graph.lag_us[made]))

    def _minimise(self, tails: Sequence[Tails]) -> None:
        """Minimise the objective; among equals prefer ranks that end early, as guidance."""
        value: list[cp_model.LinearExprT] = []
        slope: list[cp_model.LinearExprT] = []
        for span in tails:
            total = self.cp.new_int_var(0, self.earliest_start.value_us, "")
            value.append(total * span.weight)
            for rank, ops in self.inside.items():
                end = self._span_of_rank(span, rank, ops)
                self.cp.add(total >= end)
                slope.append(end * span.weight)
        self.cp.add(cp_model.LinearExpr.sum(value) <= self.earliest_start.value_us)
        steepness = 2 * len(self.earliest_start.orders)
        self.cp.minimize(
            cp_model.LinearExpr.sum(value) * steepness + cp_model.LinearExpr.sum(slope)
        )

    def _span_of_rank(self, span: Tails, rank: int, ops: Sequence[int]) -> cp_model.IntVar:
        """Return the span that the rank's ops cause through the part after the window."""
        order = self.earliest_start.orders[rank]
        place = self.earliest_start.index[ops[0]] + len(ops)
        is_last = place == len(order)
        behind = span.behind_rank_us[rank] if is_last else span.from_start_us[order[place]]
        value = self.cp.new_int_var(0, 2 * self.earliest_start.spans.makespan_us, "")
        for op in ops:
            for tail in (behind, *self._tails_of(span, op)):
                self.cp.add(value >= self._end(op) + tail)
        return value

    def _tails_of(self, span: Tails, op: int) -> Iterator[int]:
        """Yield the tails of ops after the window on other ranks that wait for the op."""
        if op in span.behind_copy_us:
            yield span.behind_copy_us[op]
        reader = self.graph.reader[op]
        if reader != NONE and reader not in self.ops:
            yield self.graph.lag_us[op] + span.from_start_us[reader]

    def solve(self, seconds: float, seed: int, should_stop: Callable[[], bool]) -> list[Change]:
        """Return the changes of the best solution found with this effort (see `decide`)."""
        found, self.spent_s, _ = decide(self.cp, seconds, seed, should_stop)
        if found is None:
            return []
        changes = []
        for rank, ops in self.inside.items():
            # Sorting keeps the present order among ops that start together.
            ordered = sorted(ops, key=lambda op: found.value(self.start[op]))
            if ordered != ops:
                changes.append(Change(rank, self.earliest_start.index[ops[0]], ops, ordered))
        return changes
