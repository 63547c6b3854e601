"""The exact model for CP-SAT: variables, constraints, objective.

It is fast by the FIFO lemma (see `order`), by memory as precedences where a rank holds one stage
copy (see `precedences`) and as counts where it holds more (see `counts`), and by a complete
feasible hint, which gives the horizon too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from synth.objective import Objective, Spans
from synth.solver.cpsat.fusion import Fusion
from synth.solver.cpsat.links import LinkConstraints
from synth.solver.cpsat.memory.counts import Counts
from synth.solver.cpsat.memory.precedences import Alternative, Before, asked_by_all, requirements
from synth.solver.cpsat.memory.reservoir import UsageEvent, add_reservoir, events_of
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.passing_pairs import add_passing_pairs
from synth.solver.instance.instance import BW, SPLIT, STEP, B, F, Instance, OpIndex, W
from synth.solver.instance.timing import TimedOrders
from synth.solver.tuning import EXACT_MODEL


class ExactModel:
    """A CP-SAT model of some ranks, minimising makespan, period or a sum of both.

    With all ranks it is the whole problem. With fewer it is a relaxation: the ranks outside become
    delays, because they cannot be faster than empty ranks.

    `infeasible` is set if some op never fits in memory. With `fusible` the search also decides
    which B and W to fuse, on ranks that hold one stage copy. With `passing_pairs` ranks outside run
    one F or B at a time (see `passing_pairs`).
    """

    # Ops of a rank up to which the order of each pair is a literal.
    most_counted = EXACT_MODEL.most_counted_ops

    def __init__(
        self,
        instance: Instance,
        objective: Objective,
        horizon_us: int,
        scope: Iterable[int] | None = None,
        *,
        fusible: bool = False,
        passing_pairs: bool = False,
    ) -> None:
        self.instance, self.objective, self.horizon_us = instance, objective, horizon_us
        self.longest_us = instance.longest_us(objective, horizon_us)
        # Upper limit of starts that have no other one: a rank's time is within the longest, and it
        # begins at the latest when that of the ranks before it ends.
        self.far_us = 4 * self.longest_us
        self.ranks = sorted(range(instance.num_ranks) if scope is None else scope)
        self.copies = sorted(copy for rank in self.ranks for copy in instance.held[rank])
        self.cp = cp_model.CpModel()
        self.infeasible = False
        self._add_variables()
        self.fusions = {
            copy: Fusion(self.cp, instance, copy, self.start)
            for copy in self.copies
            if fusible and instance.is_alone(copy) and instance[copy].gains_by_fusion
        }
        for copy in self.copies:
            self.order(copy)
        for rank in self.ranks:
            self.one_at_a_time(rank)
            self.memory(rank)
        self.transfers()
        if passing_pairs:
            add_passing_pairs(self.cp, instance, self.copies, self.start)
        self.reduce()
        self.minimise()

    def _add_variables(self) -> None:
        """A start per op: not before the pipeline above can have delivered, not after the end."""
        self.start: dict[tuple[int, OpIndex], cp_model.LinearExpr] = {}
        self._add_origins()
        for copy in self.copies:
            origins = self.instance.origins_us
            head, slowest = self.instance.head_us[copy], self.instance.slowest_f_us[copy]
            rank = self.instance[copy].rank
            latest_us = self.longest_us
            if self.objective.makespans == 0:
                latest_us += origins[rank] if origins else 2 * self.longest_us
            for op_index in self.instance.op_indices(copy):
                # At least k forwards have passed the slowest stage up to here.
                earliest = head + op_index.microbatch * slowest
                latest = max(earliest, latest_us)
                is_first = op_index == (F, 0) and copy == self.instance.held[rank][0]
                if is_first and self.objective.periods and origins:
                    latest = earliest
                name = f"{op_index.kind}{copy}.{op_index.microbatch}"
                self.start[copy, op_index] = self.cp.new_int_var(earliest, latest, name)

    def _add_origins(self) -> None:
        """Add the moments from which each rank's time counts to the period, where they vary."""
        self.origin: dict[int, cp_model.IntVar | int] = {}
        for rank in self.ranks if self.objective.periods else ():
            if self.instance.origins_us is not None:
                self.origin[rank] = self.instance.origins_us[rank]
            else:
                self.origin[rank] = self.cp.new_int_var(0, 2 * self.longest_us, f"origin{rank}")

    def end(self, copy: int, op_index: OpIndex) -> cp_model.LinearExpr:
        """Return the end of an op."""
        return self.start[copy, op_index] + self._duration_us(copy, op_index)

    def _duration_us(self, copy: int, op_index: OpIndex) -> cp_model.LinearExpr | int:
        if copy in self.fusions:
            return self.fusions[copy].duration_us(op_index)
        return self.instance[copy].duration_us[op_index.kind]

    def order(self, copy: int) -> None:
        """F, B, W of a micro-batch follow each other, and each kind takes micro-batches in order.

        FIFO loses nothing: micro-batches are identical, so the k-th op of a kind to start may be
        called number k. Sorting keeps every precedence between two kinds, and memory counts ops,
        not names.
        """
        for k in range(self.instance[copy].num_micro_batches):
            for kind, after in ((F, B), (B, W)):
                self._precede(copy, Before(OpIndex(kind, k), OpIndex(after, k)))
            for kind in SPLIT:
                if k > 0:
                    self._precede(copy, Before(OpIndex(kind, k - 1), OpIndex(kind, k)))

    def _precede(self, copy: int, before: Before) -> cp_model.Constraint:
        return self.cp.add(self.start[copy, before.second] >= self.end(copy, before.first))

    def one_at_a_time(self, rank: int) -> None:
        """A rank runs one op at a time."""
        held = self.instance.held[rank]
        self.cp.add_no_overlap(
            self._interval(copy, op_index)
            for copy in held
            for op_index in self.instance.op_indices(copy)
        )

    def _interval(self, copy: int, op_index: OpIndex) -> cp_model.IntervalVar:
        start, size = self.start[copy, op_index], self._duration_us(copy, op_index)
        if isinstance(size, int):
            return self.cp.new_fixed_size_interval_var(start, size, "")
        end = self.cp.new_int_var(0, self.far_us, "")  # CP-SAT takes no sums here
        return self.cp.new_interval_var(start, size, end, "")

    def memory(self, rank: int) -> None:
        """Let each op start only in states in which it fits."""
        headroom = self.instance.headroom_bytes[rank]
        if headroom is None:
            return
        if len(self.instance.held[rank]) == 1:
            self._memory_of_one_stage(self.instance.held[rank][0], headroom)
        else:
            self._memory_of_many_stages(rank, headroom)

    def _memory_of_one_stage(self, index: int, headroom: int) -> None:
        """Add the cap as precedences, and a limit on the micro-batches in flight.

        Precedences that all alternatives ask for are added unconditionally too: they propagate.
        """
        copy, fusion = self.instance[index], self.fusions.get(index)
        most = self.instance.most_in_flight(index) or copy.num_micro_batches
        for k in range(most, copy.num_micro_batches):
            self._precede(index, Before(OpIndex(B, k - most), OpIndex(F, k)))
        for op_index, alternatives in requirements(copy, headroom):
            self._require(index, alternatives, fusion.separate(op_index) if fusion else None)
        if fusion is not None:
            for op_index, alternatives in requirements(copy, headroom, BW):
                self._require(index, alternatives, fusion.fused_b[op_index.microbatch])

    def _memory_of_many_stages(self, rank: int, headroom: int) -> None:
        """Add the memory limit as counts of ops done, or for many ops as a reservoir."""
        nodes = [
            (copy, op_index)
            for copy in self.instance.held[rank]
            for op_index in self.instance.op_indices(copy)
        ]
        peaks_above = (
            self.instance[copy].peak_above_bytes[op_index.kind] for copy, op_index in nodes
        )
        self.infeasible |= any(peak_above > headroom for peak_above in peaks_above)
        if len(nodes) <= self.most_counted:
            Counts(self.cp, self.instance, self.start, self.end).add(nodes, headroom)
            return
        events: list[UsageEvent] = []
        for copy, op_index in nodes:
            start, end = self.start[copy, op_index], self.end(copy, op_index)
            events += events_of(self.instance[copy], op_index.kind, start, end)
        add_reservoir(self.cp, events, headroom)

    def _require(
        self, copy: int, alternatives: Sequence[Alternative], given: cp_model.LiteralT | None
    ) -> None:
        """Let one of the alternatives hold, if `given` holds."""
        conditions = [] if given is None else [given]
        if not alternatives:
            self.infeasible = self.infeasible or given is None
            self.cp.add_bool_or([~literal for literal in conditions])
            return
        if len(alternatives) == 1:
            for before in alternatives[0]:
                self._precede(copy, before).only_enforce_if(conditions)
            return
        choices = [self.cp.new_bool_var("") for _ in alternatives]
        for choice, alternative in zip(choices, alternatives, strict=True):
            for before in alternative:
                self._precede(copy, before).only_enforce_if(choice)
        self.cp.add_bool_or(choices).only_enforce_if(conditions)
        for before in asked_by_all(alternatives):
            self._precede(copy, before).only_enforce_if(conditions)

    def transfers(self) -> None:
        """Let ops wait for their inputs from other copies."""
        start, end, fusions = self.start, self.end, self.fusions
        LinkConstraints(self.cp, self.instance, self.copies, start, end, fusions, self.far_us).add()

    def minimise(self) -> None:
        """Minimise the last end of a rank, less its first start for the period, or a sum.

        Copies above the scope end no sooner than the last gradients that reach them and the W's
        that are then left.
        """
        self.spans: list[SpanVariable] = []
        if self.objective.makespans:
            self._add_span(
                dict.fromkeys(range(self.instance.num_ranks), 0), self.objective.makespans
            )
        if self.objective.periods:
            self._add_period()
        self.value = self._sum_of_spans()
        self.cp.minimize(self.value)

    def _add_period(self) -> None:
        """Add the period, counted from each rank's own start."""
        for rank, origin in self.origin.items():
            if not isinstance(origin, int):
                for index in self.instance.held[rank]:
                    self.cp.add(origin <= self.start[index, OpIndex(F, 0)])
        known = dict(enumerate(self.instance.origins_us or ()))
        self._add_span({**known, **self.origin}, self.objective.periods)

    def _add_span(self, origins: _Origins, weight: int) -> None:
        """Add a variable that no rank's end, less its origin, exceeds."""
        length = self.cp.new_int_var(0, self.longest_us, "span")
        self.spans.append(SpanVariable(length, weight, origins))
        for rank in self.ranks:
            for end in self._ends_of_rank(rank):
                self.cp.add(length >= end - origins[rank])
        modelled = set(self.copies)
        for index in self.copies:
            for above in self.instance.chain_above(index):
                if above in modelled:
                    break
                if self.instance[above].rank in origins:
                    for end in self._ends_above(index, above):
                        self.cp.add(length >= end - origins[self.instance[above].rank])

    def _sum_of_spans(self) -> cp_model.IntVar:
        if len(self.spans) == 1:
            return self.spans[0].length
        value = self.cp.new_int_var(0, self.horizon_us, "value")
        self.cp.add(value == sum(span.length * span.weight for span in self.spans))
        return value

    def _ends_of_rank(self, rank: int) -> Iterator[cp_model.LinearExpr]:
        """Yield the ends of a rank: STEPs come last, in order, each after its own reduction."""
        held = self.instance.held[rank]
        for index in held:
            yield self.end(index, OpIndex(W, self.instance[index].last)) + self.instance.step_us(
                rank
            )
        for place, index in enumerate(held):
            reduced = self.reduced.get(self.instance[index].stage)
            if reduced is not None:
                yield reduced + sum(self.instance[c].duration_us[STEP] for c in held[place:])

    def reduce(self) -> None:
        """Reduce gradients after the last W of all copies, one at a time per set of ranks.

        Copies outside the scope are taken to be ready.
        """
        self.reduced: dict[int, cp_model.IntVar] = {}
        modelled = set(self.copies)
        for stages in self.instance.reductions.values():
            turns = []
            for stage in stages:
                copies = [copy for copy in self.instance.copies_of(stage) if copy in modelled]
                lasts = [self.end(copy, OpIndex(W, self.instance[copy].last)) for copy in copies]
                if lasts:
                    reduce_us = self.instance[copies[0]].reduce_us
                    start = self.cp.new_int_var(0, self.far_us, "")
                    for last in lasts:
                        self.cp.add(start >= last)
                    end = self.cp.new_int_var(0, self.far_us + reduce_us, "")
                    turns.append(self.cp.new_interval_var(start, reduce_us, end, ""))
                    self.reduced[stage] = end
            self.cp.add_no_overlap(turns)

    def _ends_above(self, index: int, above: int) -> Iterator[cp_model.LinearExpr]:
        """After B k has come up to a copy, it has at least m − 1 − k B's and m − k W's left.

        Where a link is slower than that, it has the last W left after m − 1 − k transfers.
        """
        copy = self.instance[above]
        way_us = self.instance.way_up_us(index, above) + copy.duration_us[B]
        slowest_us = self.instance.slowest_up_us(index, above)
        for k in range(copy.num_micro_batches):
            behind = copy.num_micro_batches - 1 - k
            work_us = behind * (copy.duration_us[B] + copy.duration_us[W])
            left_us = max(work_us, behind * slowest_us) + copy.duration_us[W]
            yield (
                self.end(index, OpIndex(B, k)) + way_us + left_us + self.instance.step_us(copy.rank)
            )

    def tune(self, parameters: cp_model.SatParameters) -> None:
        """Set parameters that suit this model; none by default."""

    def at_least(self, bound_us: int) -> None:
        """Add a bound of the objective proven elsewhere."""
        self.cp.add(self.value >= bound_us)

    def ends_after(self, rank: int, at: cp_model.LinearExpr) -> None:
        """Add that a modelled rank does not end before a moment."""
        for span in self.spans:
            self.cp.add(span.length >= at - span.origins[rank])

    def both_at_least(self, bounds: Spans) -> None:
        """Add a bound of each summand, if the objective is a sum."""
        if self.objective.is_sum:
            for span, bound_us in zip(self.spans, bounds, strict=True):
                self.cp.add(span.length >= bound_us)

    def hint(self, timing: TimedOrders, value_us: int) -> None:
        """Hint a complete solution."""
        for key, variable in self.start.items():
            if not isinstance(variable, cp_model.IntVar):
                raise TypeError("a model whose starts are expressions takes no hint")
            self.cp.add_hint(variable, timing.starts[key])
        for rank, origin in self.origin.items():
            if not isinstance(origin, int):
                firsts = [timing.starts[c, OpIndex(F, 0)] for c in self.instance.held[rank]]
                self.cp.add_hint(origin, min(firsts))
        for fusion in self.fusions.values():
            fusion.hint(timing.fused)
        self.cp.add_hint(self.value, value_us)
        if self.objective.is_sum:
            for span, length_us in zip(self.spans, timing.spans(self.instance), strict=True):
                self.cp.add_hint(span.length, length_us)

    def read(self, value: Callable[[cp_model.LinearExprT], int]) -> TimedOrders:
        """Return the solution.

        Args:
            value: looks up the value of a variable.
        """
        pairs = [pair for fusion in self.fusions.values() for pair in fusion.chosen(value)]
        return TimedOrders({key: value(v) for key, v in self.start.items()}, frozenset(pairs))


_Origins: TypeAlias = "Mapping[int, cp_model.IntVar | int]"


class SpanVariable(NamedTuple):
    """The makespan or the period, its weight, and by rank the moment from which it counts."""

    length: cp_model.IntVar
    weight: int
    origins: _Origins
