"""The exact model, for CP-SAT: variables, constraints, objective.

What makes it fast: the FIFO lemma (see `order`), memory as precedences where a rank holds one stage
(see `precedences`) and as counts where it holds more (see `counts`), a complete feasible hint and
the horizon from it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from synth.objective import Objective, Spans
from synth.solve.cpsat.fusion import Fusion
from synth.solve.cpsat.links import Transfers
from synth.solve.cpsat.memory.counts import Counts
from synth.solve.cpsat.memory.precedences import Alternative, Before, asked_by_all, requirements
from synth.solve.cpsat.memory.reservoir import Event, add_reservoir, events_of
from synth.solve.cpsat.passing_pairs import add_meetings
from synth.solve.instance.instance import BW, SPLIT, STEP, B, F, Slot, View, W
from synth.solve.instance.timing import Solution


class Model:
    """A CP-SAT model of some ranks, minimising makespan or period.

    With all ranks it is the whole problem. With fewer it is a relaxation: the ranks outside become
    delays, because whatever they do, they cannot be faster than empty ranks.

    `infeasible` is set where some op never fits in memory. With `fusible` the search also decides
    which B and W to fuse, on ranks that hold one stage. With `meets` ranks outside run one F or B
    at a time (see `passing_pairs`).
    """

    # Of so many ops of a rank the order is a literal for each two.
    most_counted = 120

    def __init__(
        self,
        view: View,
        objective: Objective,
        horizon_us: int,
        scope: Iterable[int] | None = None,
        *,
        fusible: bool = False,
        meets: bool = False,
    ) -> None:
        self.view, self.objective, self.horizon_us = view, objective, horizon_us
        self.longest_us = view.longest_us(objective, horizon_us)
        # Where starts have no other limit: a rank's time is within the longest, and it begins, as
        # late as can be, when that of the ranks before it ends.
        self.far_us = 4 * self.longest_us
        self.ranks = sorted(range(view.num_ranks) if scope is None else scope)
        self.chunks = sorted(chunk for rank in self.ranks for chunk in view.held[rank])
        self.cp = cp_model.CpModel()
        self.infeasible = False
        self._add_variables()
        self.fusions = {
            chunk: Fusion(self.cp, view, chunk, self.start)
            for chunk in self.chunks
            if fusible and view.is_alone(chunk) and view[chunk].gains_by_fusion
        }
        for chunk in self.chunks:
            self.order(chunk)
        for rank in self.ranks:
            self.one_at_a_time(rank)
            self.memory(rank)
        self.transfers()
        if meets:
            add_meetings(self.cp, view, self.chunks, self.start)
        self.reduce()
        self.minimise()

    def _add_variables(self) -> None:
        """A start per op: not before the pipeline above can have delivered, not after the end."""
        self.start: dict[tuple[int, Slot], cp_model.LinearExpr] = {}
        self._add_origins()
        for chunk in self.chunks:
            origins = self.view.origins_us
            head, slowest = self.view.head_us[chunk], self.view.slowest_f_us[chunk]
            rank = self.view[chunk].rank
            latest_us = self.longest_us
            if self.objective.makespans == 0:
                latest_us += origins[rank] if origins else 2 * self.longest_us
            for slot in self.view.slots(chunk):
                # At least k forwards have passed the slowest stage up to here.
                earliest = head + slot.microbatch * slowest
                latest = max(earliest, latest_us)
                is_first = slot == (F, 0) and chunk == self.view.held[rank][0]
                if is_first and self.objective.periods and origins:
                    latest = earliest
                name = f"{slot.kind}{chunk}.{slot.microbatch}"
                self.start[chunk, slot] = self.cp.new_int_var(earliest, latest, name)

    def _add_origins(self) -> None:
        """From when each rank's time counts to the period, where schedules may differ in that."""
        self.origin: dict[int, cp_model.IntVar | int] = {}
        for rank in self.ranks if self.objective.periods else ():
            if self.view.origins_us is not None:
                self.origin[rank] = self.view.origins_us[rank]
            else:
                self.origin[rank] = self.cp.new_int_var(0, 2 * self.longest_us, f"origin{rank}")

    def end(self, chunk: int, slot: Slot) -> cp_model.LinearExpr:
        """When an op ends."""
        return self.start[chunk, slot] + self._duration_us(chunk, slot)

    def _duration_us(self, chunk: int, slot: Slot) -> cp_model.LinearExpr | int:
        if chunk in self.fusions:
            return self.fusions[chunk].duration_us(slot)
        return self.view[chunk].duration_us[slot.kind]

    def order(self, chunk: int) -> None:
        """F, B, W of a micro-batch follow each other, and each kind takes micro-batches in order.

        FIFO loses nothing: micro-batches are identical, so the k-th op of a kind to start may be
        called number k. Sorting keeps every precedence between two kinds, and memory counts ops,
        not names.
        """
        for k in range(self.view[chunk].num_micro_batches):
            for kind, after in ((F, B), (B, W)):
                self._precede(chunk, Before(Slot(kind, k), Slot(after, k)))
            for kind in SPLIT:
                if k > 0:
                    self._precede(chunk, Before(Slot(kind, k - 1), Slot(kind, k)))

    def _precede(self, chunk: int, before: Before) -> cp_model.Constraint:
        return self.cp.add(self.start[chunk, before.second] >= self.end(chunk, before.first))

    def one_at_a_time(self, rank: int) -> None:
        """A rank runs one op at a time."""
        held = self.view.held[rank]
        self.cp.add_no_overlap(
            self._interval(chunk, slot) for chunk in held for slot in self.view.slots(chunk)
        )

    def _interval(self, chunk: int, slot: Slot) -> cp_model.IntervalVar:
        start, size = self.start[chunk, slot], self._duration_us(chunk, slot)
        if isinstance(size, int):
            return self.cp.new_fixed_size_interval_var(start, size, "")
        end = self.cp.new_int_var(0, self.far_us, "")  # CP-SAT takes no sums here
        return self.cp.new_interval_var(start, size, end, "")

    def memory(self, rank: int) -> None:
        """Each op starts in one of the states in which it fits."""
        room = self.view.room_bytes[rank]
        if room is None:
            return
        if len(self.view.held[rank]) == 1:
            self._memory_of_one_stage(self.view.held[rank][0], room)
        else:
            self._memory_of_many_stages(rank, room)

    def _memory_of_one_stage(self, index: int, room: int) -> None:
        """Add the cap as precedences, and a limit on the micro-batches in flight.

        Precedences that all alternatives ask for are added unconditionally too: they propagate.
        """
        chunk, fusion = self.view[index], self.fusions.get(index)
        most = self.view.most_in_flight(index) or chunk.num_micro_batches
        for k in range(most, chunk.num_micro_batches):
            self._precede(index, Before(Slot(B, k - most), Slot(F, k)))
        for slot, alternatives in requirements(chunk, room):
            self._require(index, alternatives, fusion.separate(slot) if fusion else None)
        if fusion is not None:
            for slot, alternatives in requirements(chunk, room, BW):
                self._require(index, alternatives, fusion.fused_b[slot.microbatch])

    def _memory_of_many_stages(self, rank: int, room: int) -> None:
        """As counts of what is done before each op; of many ops as a level that they change."""
        nodes = [(chunk, slot) for chunk in self.view.held[rank] for slot in self.view.slots(chunk)]
        needs = (self.view[chunk].need_bytes[slot.kind] for chunk, slot in nodes)
        self.infeasible |= any(need > room for need in needs)
        if len(nodes) <= self.most_counted:
            Counts(self.cp, self.view, self.start, self.end).add(nodes, room)
            return
        events: list[Event] = []
        for chunk, slot in nodes:
            start, end = self.start[chunk, slot], self.end(chunk, slot)
            events += events_of(self.view[chunk], slot.kind, start, end)
        add_reservoir(self.cp, events, room)

    def _require(
        self, chunk: int, alternatives: Sequence[Alternative], given: cp_model.LiteralT | None
    ) -> None:
        """One of the alternatives holds, where `given` holds."""
        conditions = [] if given is None else [given]
        if not alternatives:
            self.infeasible = self.infeasible or given is None
            self.cp.add_bool_or([~literal for literal in conditions])
            return
        if len(alternatives) == 1:
            for before in alternatives[0]:
                self._precede(chunk, before).only_enforce_if(conditions)
            return
        choices = [self.cp.new_bool_var("") for _ in alternatives]
        for choice, alternative in zip(choices, alternatives, strict=True):
            for before in alternative:
                self._precede(chunk, before).only_enforce_if(choice)
        self.cp.add_bool_or(choices).only_enforce_if(conditions)
        for before in asked_by_all(alternatives):
            self._precede(chunk, before).only_enforce_if(conditions)

    def transfers(self) -> None:
        """What ops wait for that others pass on."""
        start, end, fusions = self.start, self.end, self.fusions
        Transfers(self.cp, self.view, self.chunks, start, end, fusions, self.far_us).add()

    def minimise(self) -> None:
        """The last end of a rank, with its STEPs; for the period less its first start; or a sum.

        Chunks above the scope end no sooner than the last gradients that reach them and the W's
        that are then still to do.
        """
        self.spans: list[Span] = []
        if self.objective.makespans:
            self._add_span(dict.fromkeys(range(self.view.num_ranks), 0), self.objective.makespans)
        if self.objective.periods:
            self._add_period()
        self.value = self._sum_of_spans()
        self.cp.minimize(self.value)

    def _add_period(self) -> None:
        """Counted from each rank's own start."""
        for rank, origin in self.origin.items():
            if not isinstance(origin, int):
                for index in self.view.held[rank]:
                    self.cp.add(origin <= self.start[index, Slot(F, 0)])
        known = dict(enumerate(self.view.origins_us or ()))
        self._add_span({**known, **self.origin}, self.objective.periods)

    def _add_span(self, origins: "_Origins", weight: int) -> None:
        """A variable that no rank's end, less its origin, exceeds."""
        length = self.cp.new_int_var(0, self.longest_us, "span")
        self.spans.append(Span(length, weight, origins))
        for rank in self.ranks:
            for end in self._ends_of_rank(rank):
                self.cp.add(length >= end - origins[rank])
        modelled = set(self.chunks)
        for index in self.chunks:
            for above in self.view.chain_above(index):
                if above in modelled:
                    break
                if self.view[above].rank in origins:
                    for end in self._ends_above(index, above):
                        self.cp.add(length >= end - origins[self.view[above].rank])

    def _sum_of_spans(self) -> cp_model.IntVar:
        if len(self.spans) == 1:
            return self.spans[0].length
        value = self.cp.new_int_var(0, self.horizon_us, "value")
        self.cp.add(value == sum(span.length * span.weight for span in self.spans))
        return value

    def _ends_of_rank(self, rank: int) -> Iterator[cp_model.LinearExpr]:
        """STEPs come last, in order, each after its own reduction."""
        held = self.view.held[rank]
        for index in held:
            yield self.end(index, Slot(W, self.view[index].last)) + self.view.step_us(rank)
        for place, index in enumerate(held):
            reduced = self.reduced.get(self.view[index].stage)
            if reduced is not None:
                yield reduced + sum(self.view[c].duration_us[STEP] for c in held[place:])

    def reduce(self) -> None:
        """Gradients of copies are added up after the last W of all; among one set of ranks in turn.

        Copies outside the scope are taken to be ready.
        """
        self.reduced: dict[int, cp_model.IntVar] = {}
        modelled = set(self.chunks)
        for stages in self.view.reductions.values():
            turns = []
            for stage in stages:
                copies = [copy for copy in self.view.copies(stage) if copy in modelled]
                lasts = [self.end(copy, Slot(W, self.view[copy].last)) for copy in copies]
                if lasts:
                    reduce_us = self.view[copies[0]].reduce_us
                    start = self.cp.new_int_var(0, self.far_us, "")
                    for last in lasts:
                        self.cp.add(start >= last)
                    end = self.cp.new_int_var(0, self.far_us + reduce_us, "")
                    turns.append(self.cp.new_interval_var(start, reduce_us, end, ""))
                    self.reduced[stage] = end
            self.cp.add_no_overlap(turns)

    def _ends_above(self, index: int, above: int) -> Iterator[cp_model.LinearExpr]:
        """After B k has come up to a chunk, it has m − 1 − k B's and m − k W's left at least."""
        chunk = self.view[above]
        way_us = self.view.way_up_us(index, above) + chunk.duration_us[B]
        for k in range(chunk.num_micro_batches):
            left_us = (chunk.num_micro_batches - 1 - k) * chunk.duration_us[B]
            left_us += (chunk.num_micro_batches - k) * chunk.duration_us[W]
            yield self.end(index, Slot(B, k)) + way_us + left_us + self.view.step_us(chunk.rank)

    def tune(self, parameters: cp_model.SatParameters) -> None:
        """Set what serves this model better than what serves all."""

    def at_least(self, bound_us: int) -> None:
        """Tell the search a bound proven elsewhere."""
        self.cp.add(self.value >= bound_us)

    def ends_after(self, rank: int, at: cp_model.LinearExpr) -> None:
        """Tell the search that a rank that is modelled does not end before a moment."""
        for span in self.spans:
            self.cp.add(span.length >= at - span.origins[rank])

    def both_at_least(self, bounds: Spans) -> None:
        """Tell the search, where the objective is a sum, a bound of each summand."""
        if self.objective.is_sum:
            for span, bound_us in zip(self.spans, bounds, strict=True):
                self.cp.add(span.length >= bound_us)

    def hint(self, solution: Solution, value_us: int) -> None:
        """Begin from a complete solution."""
        for key, variable in self.start.items():
            assert isinstance(variable, cp_model.IntVar)
            self.cp.add_hint(variable, solution.starts[key])
        for rank, origin in self.origin.items():
            if not isinstance(origin, int):
                firsts = [solution.starts[c, Slot(F, 0)] for c in self.view.held[rank]]
                self.cp.add_hint(origin, min(firsts))
        for fusion in self.fusions.values():
            fusion.hint(solution.fused)
        self.cp.add_hint(self.value, value_us)
        if self.objective.is_sum:
            for span, length_us in zip(self.spans, solution.spans(self.view), strict=True):
                self.cp.add_hint(span.length, length_us)

    def read(self, value: Callable[[cp_model.LinearExprT], int]) -> Solution:
        """The solution, given how to look a variable's value up."""
        pairs = [pair for fusion in self.fusions.values() for pair in fusion.chosen(value)]
        return Solution({key: value(v) for key, v in self.start.items()}, frozenset(pairs))


_Origins = Mapping[int, cp_model.IntVar | int]


class Span(NamedTuple):
    """The makespan or the period, how often it counts, and from when on, rank by rank."""

    length: cp_model.IntVar
    weight: int
    origins: _Origins
