"""Large-neighbourhood search over windows of time: everything outside keeps its order.

    time   | before            | window            | after
    order  | as it is          | free, by CP-SAT   | as it is, after the window's ops on each rank
    memory | unchanged         | within the cap    | unchanged: the same ops precede each op

Some windows are short and free on all ranks, others long and free on a few of them. What comes
after is a fixed graph, so it enters the window's model only as each op's tail: the longest way from
its end to the end of the schedule. The model stays as small as the window.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ortools.sat.python import cp_model

from synth.solve.precedences import Alternative, Before, requirements
from synth.solve.problem import Objective
from synth.solve.reservoir import Event, add_reservoir, events_of
from synth.solve.run_cpsat import solve_briefly
from synth.solve.solution import Solution, StuckError, timed
from synth.solve.view import SPLIT, STEP, B, F, Slot, View, W

Node = tuple[int, Slot]


class _Level(NamedTuple):
    """A size of windows, and how long CP-SAT may think about one, in its deterministic seconds."""

    num_ops: int
    seconds: float


# Many small windows gain more than few large ones. Larger ones see further, and are for when the
# small ones find nothing more; beyond, CP-SAT stalls.
_LEVELS = (_Level(24, 0.03), _Level(40, 0.1), _Level(64, 0.2), _Level(120, 0.5), _Level(240, 1.0))
LARGEST_WINDOW = _LEVELS[-1].num_ops

# How often every op should have been in a window before larger ones are tried.
_COVER = 2

# Several starts race with the smallest sizes for so much of the effort.
_RACE_LEVELS = 2
_RACE_SHARE = 0.4

# What a window costs besides, to build and to evaluate, in the same seconds.
_OVERHEAD_S = 0.01

# One window in so many is long, and free on few ranks.
_NARROW_EVERY = 4
_FREE_RANKS = 2


def improve(
    view: View,
    objective: Objective,
    solutions: Sequence[Solution],
    seconds: float,
    seed: int,
    should_stop: Callable[[], bool],
    on_better: Callable[[Solution], None],
) -> Solution:
    """Re-solve windows of split solutions, small ones first; never gets worse than the best.

    All of them are improved with small windows; whichever is best then, with larger ones. A window
    is kept when it is not worse for the whole: moves between equals lead out of dead ends. Ends
    when the largest windows find nothing more.

    Args:
        seconds: the effort, in CP-SAT's deterministic seconds, so that it can be repeated.
        on_better: called for what is better than all before.
    """
    effort = _Effort(seconds, should_stop)
    searches = [_Search(view, objective, solution, seed) for solution in solutions]
    best = min(searches, key=lambda search: search.value_us)
    best_us = best.value_us

    def tell(search: _Search) -> None:
        nonlocal best_us
        if search.value_us < best_us:
            best_us = search.value_us
            on_better(search.solution)

    for search in searches:
        share = _Effort(seconds * _RACE_SHARE / len(searches), should_stop)
        effort.seconds_left -= share.seconds_left
        for level in _LEVELS[:_RACE_LEVELS]:
            search.improve(level, share, tell)
        effort.seconds_left += share.seconds_left
    best = min(searches, key=lambda search: search.value_us)
    for level in _LEVELS:
        best.improve(level, effort, tell)
    return best.solution


@dataclass
class _Effort:
    """What is left to spend, in CP-SAT's deterministic seconds."""

    seconds_left: float
    should_stop: Callable[[], bool]

    def is_spent(self) -> bool:
        """Whether to end."""
        return self.seconds_left <= 0 or self.should_stop()


class _Search:
    """The current solution, and what its graph says."""

    def __init__(self, view: View, objective: Objective, solution: Solution, seed: int) -> None:
        self.view, self.objective = view, objective
        self.rng = random.Random(seed)
        self.required: dict[Node, tuple[Alternative, ...]] = {
            (index, need.slot): need.alternatives
            for index, chunk in enumerate(view.chunks)
            if view.is_alone(index)
            for need in requirements(chunk, view.room_of(index))
        }
        self._use(timed(solution.orders(view), view))

    def _use(self, solution: Solution) -> None:
        """Make a solution current, each of whose ops is as early as its order allows."""
        self.solution = solution
        self.value_us = solution.value_us(self.view, self.objective)
        starts = solution.starts
        # The simulation places ops after what they need, and sorting keeps that among equals.
        self.sequence = sorted(starts, key=starts.__getitem__)
        self.place = {node: i for i, node in enumerate(self.sequence)}
        self.orders: list[list[Node]] = [[] for _ in self.view.room_bytes]
        self.index: dict[Node, int] = {}
        self.level: list[list[int]] = [[0] for _ in self.view.room_bytes]
        for node in self.sequence:
            chunk = self.view[node[0]]
            order, level = self.orders[chunk.rank], self.level[chunk.rank]
            self.index[node] = len(order)
            order.append(node)
            level.append(level[-1] + chunk.effect_bytes[node[1].kind])
        self._find_tails()

    def duration_us(self, node: Node) -> int:
        """How long an op lasts."""
        return self.view[node[0]].duration_us[node[1].kind]

    def reader(self, node: Node) -> tuple[Node, int] | None:
        """The op that waits for what F or B makes, and the time of its transfer."""
        index, (kind, k) = node
        chunk = self.view[index]
        if kind == F:
            if chunk.below is None:
                return (index, Slot(B, k)), 0
            return (chunk.below, node[1]), chunk.down_us
        if kind == B and chunk.above is not None:
            return (chunk.above, node[1]), self.view[chunk.above].up_us
        return None

    def _find_tails(self) -> None:
        """The longest way from the start of each op to the end of the schedule."""
        self.from_start: dict[Node, int] = {}
        following: dict[Node, Node] = {}
        for order in self.orders:
            following.update(pairwise(order))
        self.rank_end = [self._rank_tail_us(rank) for rank in range(len(self.orders))]
        self.chunk_end = self._reduction_tails_us()
        for node in reversed(self.sequence):
            rank = self.view[node[0]].rank
            tail = self.chunk_end.get(node, -self.value_us * 4)
            after = following.get(node)
            tail = max(tail, self.from_start[after] if after else self.rank_end[rank])
            reader = self.reader(node)
            if reader is not None:
                tail = max(tail, reader[1] + self.from_start[reader[0]])
            self.from_start[node] = self.duration_us(node) + tail

    def _rank_tail_us(self, rank: int) -> int:
        """What a rank's last op has behind it: STEPs, less when the rank's time began."""
        origin = 0
        if self.objective == Objective.PERIOD and self.orders[rank]:
            origin = self.solution.starts[self.orders[rank][0]]
        return self.view.step_us(rank) - origin

    def _reduction_tails_us(self) -> dict[Node, int]:
        """What the last W of a stage has behind it, where gradients are reduced."""
        tails: dict[Node, int] = {}
        for held in self.view.held:
            for place, index in enumerate(held):
                chunk = self.view[index]
                if chunk.reduce_us == 0:
                    continue
                left_us = sum(self.view[c].duration_us[STEP] for c in held[place:])
                origin = self.view.step_us(chunk.rank) - self.rank_end[chunk.rank]
                tail = chunk.reduce_us + left_us - origin
                for copy in self.view.copies(chunk.stage):
                    last = (copy, Slot(W, self.view[copy].last))
                    tails[last] = max(tail, tails.get(last, tail))
        return tails

    def improve(self, level: _Level, effort: _Effort, tell: Callable[["_Search"], None]) -> None:
        """Re-solve windows of one size until they find nothing more."""
        patience = max(10, _COVER * self.view.num_ops // level.num_ops)
        idle = 0
        while idle < patience and not effort.is_spent():
            better, spent_s = self.round(level)
            effort.seconds_left -= spent_s + _OVERHEAD_S
            idle = 0 if better else idle + 1
            if better:
                tell(self)

    def round(self, level: _Level) -> tuple[bool, float]:
        """Re-solve one random window; whether the whole got better, and what it cost."""
        model = _Window(self, *self._choose(level.num_ops))
        found = model.solve(level.seconds, self.rng.randrange(1 << 30))
        return found is not None and self._improves(found), model.spent_s

    def _improves(self, found: Sequence[Sequence[Node]]) -> bool:
        """Take what is not worse for the whole; whether it is better."""
        orders = [[(chunk, slot.kind) for chunk, slot in order] for order in found]
        try:
            solution = timed(orders, self.view)
        except StuckError:  # ops of no duration in a wrong order
            return False
        value_us = solution.value_us(self.view, self.objective)
        better = value_us < self.value_us
        if value_us <= self.value_us:
            self._use(solution)
        return better

    def _choose(self, num_ops: int) -> tuple[tuple[int, int], frozenset[int]]:
        """Ops that start around a random moment, a run of the sequence; and the free ranks."""
        num_ranks = self.view.num_ranks
        free = frozenset(range(num_ranks))
        if num_ranks > _FREE_RANKS and self.rng.randrange(_NARROW_EVERY) == 0:
            first_rank = self.rng.randrange(num_ranks - _FREE_RANKS + 1)
            free = frozenset(range(first_rank, first_rank + _FREE_RANKS))
            num_ops = num_ops * num_ranks // (2 * _FREE_RANKS)
        first = self.rng.randrange(-num_ops // 2, max(1, len(self.sequence) - num_ops // 2))
        return (max(0, first), min(len(self.sequence), first + num_ops)), free


class _Window:
    """The model of one window: constants before it, variables in it, tails after it."""

    def __init__(self, search: _Search, window: tuple[int, int], free: frozenset[int]) -> None:
        self.search, self.view = search, search.view
        self.nodes = set(search.sequence[slice(*window)])
        self.cp = cp_model.CpModel()
        self.start: dict[Node, cp_model.IntVar] = {}
        self.values: list[cp_model.IntVar] = []
        self.spent_s = 0.0
        self.total = self.cp.new_int_var(0, search.value_us, "")
        self.inside: dict[int, list[Node]] = {}
        for node in search.sequence[slice(*window)]:
            self.inside.setdefault(self.view[node[0]].rank, []).append(node)
        for rank, nodes in self.inside.items():
            self._add_rank(rank, nodes, rank in free)
        self._add_transfers()
        for rank, nodes in self.inside.items():
            self._add_value(rank, nodes)
        # The objective first; among equals, ranks that have time left, which gives it a slope.
        self.cp.minimize(self.total * (2 * len(search.orders)) + sum(self.values))

    def _add_rank(self, rank: int, nodes: list[Node], is_free: bool) -> None:
        """Free the order of a rank's ops in the window, or keep it."""
        search, order = self.search, self.search.orders[rank]
        first = search.index[nodes[0]]
        earliest = self._end_us(order[first - 1]) if first else 0
        for node in nodes:
            self.start[node] = self.cp.new_int_var(earliest, 2 * search.value_us, "")
            self.cp.add_hint(self.start[node], search.solution.starts[node])
        if not is_free:
            for node, following in pairwise(nodes):
                self._precede(node, following)
            return
        self.cp.add_no_overlap(
            self.cp.new_fixed_size_interval_var(self.start[node], search.duration_us(node), "")
            for node in nodes
        )
        for node in nodes:
            self._add_order(node)
        self._add_memory(rank, nodes, search.level[rank][first])

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
                self._add_requirement(node[0], self.search.required.get(node, ()))
            return
        events: list[Event] = []
        for node in nodes:
            chunk, start = self.view[node[0]], self.start[node]
            events += events_of(chunk, node[1].kind, start, start + self.search.duration_us(node))
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
        place = self.search.place
        for before in alternative:
            ends = ((chunk, before.first), (chunk, before.second))
            if all(node in self.nodes for node in ends):
                undecided.append(before)
            elif place[ends[0]] > place[ends[1]]:
                return None
        return tuple(undecided)

    def _precede(self, first: Node, second: Node) -> cp_model.Constraint:
        duration = self.search.duration_us(first)
        return self.cp.add(self.start[second] >= self.start[first] + duration)

    def _add_transfers(self) -> None:
        """Readers wait for what was made before the window or in it."""
        for node, start in self.start.items():
            source = self._source(node)
            if source is not None:
                made, lag_us = source
                at = self.start.get(made, self.search.solution.starts[made])
                self.cp.add(start >= at + self.search.duration_us(made) + lag_us)

    def _source(self, node: Node) -> tuple[Node, int] | None:
        """The op that makes what F or B reads from another chunk, and the time of its transfer."""
        index, (kind, _) = node
        chunk = self.view[index]
        if kind == F and chunk.above is not None:
            return (chunk.above, node[1]), self.view[chunk.above].down_us
        if kind == B and chunk.below is not None:
            return (chunk.below, node[1]), chunk.up_us
        return None

    def _end_us(self, node: Node) -> int:
        return self.search.solution.starts[node] + self.search.duration_us(node)

    def _add_value(self, rank: int, nodes: Sequence[Node]) -> None:
        """What the rank's ops make of the whole, through what comes after the window."""
        search = self.search
        order = search.orders[rank]
        place = search.index[nodes[0]] + len(nodes)
        behind = search.from_start[order[place]] if place < len(order) else search.rank_end[rank]
        value = self.cp.new_int_var(0, 2 * search.value_us, "")
        for node in nodes:
            end = self.start[node] + search.duration_us(node)
            for tail in (behind, *self._tails_of(node)):
                self.cp.add(value >= end + tail)
        self.cp.add(self.total >= value)
        self.values.append(value)

    def _tails_of(self, node: Node) -> Iterator[int]:
        """What waits for the op behind the window, on other ranks."""
        search = self.search
        if node in search.chunk_end:
            yield search.chunk_end[node]
        reader = search.reader(node)
        if reader is not None and reader[0] not in self.nodes:
            yield reader[1] + search.from_start[reader[0]]

    def solve(self, seconds: float, seed: int) -> list[list[Node]] | None:
        """All ranks' orders with the best found for this window, by a deterministic limit."""
        solver = solve_briefly(self.cp, seconds, seed)
        if solver is None:
            self.spent_s = seconds
            return None
        self.spent_s = solver.response_proto.deterministic_time
        orders = list(self.search.orders)
        for rank, nodes in self.inside.items():
            # Sorting keeps the present order among ops that start together.
            ordered = sorted(nodes, key=lambda node: solver.value(self.start[node]))
            first = self.search.index[nodes[0]]
            orders[rank] = [*orders[rank][:first], *ordered, *orders[rank][first + len(nodes) :]]
        return None if orders == self.search.orders else orders
