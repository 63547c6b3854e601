"""The model of one window of time: constants before it, variables in it, tails after it.

    time   | before            | window            | after
    order  | as it is          | free, by CP-SAT   | as it is, after the window's ops on each rank
    memory | unchanged         | within the cap    | unchanged: the same ops precede each op

What comes after is a fixed graph, so it enters the model only as each op's tail: the longest way
from its end to the end of the schedule. The model stays as small as the window.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ortools.sat.python import cp_model

from synth.solve.counts import Counts
from synth.solve.placed import Node, Placed
from synth.solve.precedences import Alternative, Before
from synth.solve.reservoir import Event, add_reservoir, events_of
from synth.solve.run_cpsat import decide
from synth.solve.tails import Tails
from synth.solve.view import SPLIT, Slot

# Of so many ops of a rank the order is a literal for each two.
_FEW = 32

Required = Mapping[Node, tuple[Alternative, ...]]


class Change(NamedTuple):
    """Ops of a rank in a row: where in its order they begin, as they were, as they should be."""

    rank: int
    first: int
    before: list[Node]
    after: list[Node]

    def apply(self, order: list[Node]) -> list[Node] | None:
        """The rank's order, changed; None if it has been changed here since."""
        end = self.first + len(self.before)
        if order[self.first : end] != self.before:
            return None
        return [*order[: self.first], *self.after, *order[end:]]


class Window:
    """A CP-SAT model of a run of the sequence.

    Args:
        placed: the whole.
        tails: of each span that counts.
        required: what memory asks of each op, where a rank holds one stage.
        nodes: the run.
        free: ranks that may change their order.
    """

    def __init__(
        self,
        placed: Placed,
        tails: Sequence[Tails],
        required: Required,
        nodes: Sequence[Node],
        free: Collection[int],
    ) -> None:
        self.placed, self.view, self.required = placed, placed.view, required
        self.nodes = set(nodes)
        self.cp = cp_model.CpModel()
        self.start: dict[Node, cp_model.IntVar] = {}
        self.spent_s = 0.0
        self.inside: dict[int, list[Node]] = {}
        for node in nodes:
            self.inside.setdefault(self.view[node[0]].rank, []).append(node)
        for rank, ops in self.inside.items():
            self._add_rank(rank, ops, rank in free)
        self._add_transfers()
        self._minimise(tails)

    def _add_rank(self, rank: int, nodes: list[Node], is_free: bool) -> None:
        """Free the order of a rank's ops in the window, or keep it."""
        placed, order = self.placed, self.placed.orders[rank]
        first = placed.index[nodes[0]]
        earliest = placed.end_us(order[first - 1]) if first else 0
        for node in nodes:
            self.start[node] = self.cp.new_int_var(earliest, 2 * placed.spans.makespan_us, "")
            self.cp.add_hint(self.start[node], placed.starts[node])
        if not is_free:
            for node, following in pairwise(nodes):
                self._precede(node, following)
            return
        self.cp.add_no_overlap(
            self.cp.new_fixed_size_interval_var(self.start[node], placed.duration_us(node), "")
            for node in nodes
        )
        for node in nodes:
            self._add_order(node)
        self._add_memory(rank, nodes, placed.level_bytes[rank][first])

    def _add_order(self, node: Node) -> None:
        """F, B, W of a micro-batch in order, each kind in order."""
        chunk, (kind, k) = node
        same = [Slot(SPLIT[i], k) for i in range(kind.rank_in_chain + 1, 3)][:1]
        for slot in (*same, Slot(kind, k + 1)):
            if (chunk, slot) in self.nodes:
                self._precede(node, (chunk, slot))

    def _add_memory(self, rank: int, nodes: Sequence[Node], level_bytes: int) -> None:
        room = self.view.room_bytes[rank]
        if room is None:
            return
        if len(self.view.held[rank]) == 1:
            for node in nodes:
                self._add_requirement(node[0], self.required.get(node, ()))
            return
        needs = (self.view[chunk].need_bytes[slot.kind] for chunk, slot in nodes)
        if level_bytes + sum(max(0, need) for need in needs) <= room:
            return
        if len(nodes) <= _FEW:
            counts = Counts(self.cp, self.view, self.start, self._end_of, self.placed.place)
            counts.add(nodes, room, level_bytes)
            return
        events: list[Event] = []
        for node in nodes:
            chunk, start = self.view[node[0]], self.start[node]
            events += events_of(chunk, node[1].kind, start, start + self.placed.duration_us(node))
        add_reservoir(self.cp, events, room, level_bytes)

    def _add_requirement(self, chunk: int, alternatives: tuple[Alternative, ...]) -> None:
        """One alternative holds; what lies outside the window is decided already."""
        open_ones = []
        for alternative in alternatives:
            undecided = self._undecided(chunk, alternative)
            if undecided == ():
                return
            if undecided is not None:
                open_ones.append(undecided)
        choices = [self.cp.new_bool_var("") for _ in open_ones]
        for choice, alternative in zip(choices, open_ones, strict=True):
            for before in alternative:
                ends = ((chunk, before.first), (chunk, before.second))
                self._precede(*ends).only_enforce_if(choice)
        if choices:
            self.cp.add_bool_or(choices)

    def _undecided(self, chunk: int, alternative: Alternative) -> Alternative | None:
        """What of an alternative the window decides; None if the rest already fails."""
        undecided: list[Before] = []
        place = self.placed.place
        for before in alternative:
            ends = ((chunk, before.first), (chunk, before.second))
            if all(node in self.nodes for node in ends):
                undecided.append(before)
            elif place[ends[0]] > place[ends[1]]:
                return None
        return tuple(undecided)

    def _precede(self, first: Node, second: Node) -> cp_model.Constraint:
        return self.cp.add(self.start[second] >= self._end(first))

    def _end(self, node: Node) -> cp_model.LinearExpr:
        return self.start[node] + self.placed.duration_us(node)

    def _end_of(self, chunk: int, slot: Slot) -> cp_model.LinearExpr:
        return self._end((chunk, slot))

    def _add_transfers(self) -> None:
        """Readers wait for what was made before the window or in it."""
        for node, start in self.start.items():
            source = self.placed.source(node)
            if source is not None:
                made, lag_us = source
                at = self.start.get(made, self.placed.starts[made])
                self.cp.add(start >= at + self.placed.duration_us(made) + lag_us)

    def _minimise(self, tails: Sequence[Tails]) -> None:
        """The objective first; among equals, ranks that have time left, which gives it a slope."""
        value: list[cp_model.LinearExprT] = []
        slope: list[cp_model.LinearExprT] = []
        for span in tails:
            total = self.cp.new_int_var(0, self.placed.value_us, "")
            value.append(total * span.weight)
            for rank, nodes in self.inside.items():
                end = self._span_of_rank(span, rank, nodes)
                self.cp.add(total >= end)
                slope.append(end * span.weight)
        self.cp.add(cp_model.LinearExpr.sum(value) <= self.placed.value_us)
        steepness = 2 * len(self.placed.orders)
        self.cp.minimize(
            cp_model.LinearExpr.sum(value) * steepness + cp_model.LinearExpr.sum(slope)
        )

    def _span_of_rank(self, span: Tails, rank: int, nodes: Sequence[Node]) -> cp_model.IntVar:
        """What the rank's ops make of a span, through what comes after the window."""
        order = self.placed.orders[rank]
        place = self.placed.index[nodes[0]] + len(nodes)
        is_last = place == len(order)
        behind = span.behind_rank_us[rank] if is_last else span.from_start_us[order[place]]
        value = self.cp.new_int_var(0, 2 * self.placed.spans.makespan_us, "")
        for node in nodes:
            for tail in (behind, *self._tails_of(span, node)):
                self.cp.add(value >= self._end(node) + tail)
        return value

    def _tails_of(self, span: Tails, node: Node) -> Iterator[int]:
        """What waits for the op behind the window, on other ranks."""
        if node in span.behind_chunk_us:
            yield span.behind_chunk_us[node]
        reader = self.placed.reader(node)
        if reader is not None and reader[0] not in self.nodes:
            yield reader[1] + span.from_start_us[reader[0]]

    def solve(self, seconds: float, seed: int, should_stop: Callable[[], bool]) -> list[Change]:
        """What the best found for this window changes, by a deterministic limit."""
        solver, self.spent_s = decide(self.cp, seconds, seed, should_stop)
        if solver is None:
            return []
        changes = []
        for rank, nodes in self.inside.items():
            # Sorting keeps the present order among ops that start together.
            ordered = sorted(nodes, key=lambda node: solver.value(self.start[node]))
            if ordered != nodes:
                changes.append(Change(rank, self.placed.index[nodes[0]], nodes, ordered))
        return changes
