"""Large-neighbourhood search over windows of time: everything outside keeps its order.

Some windows are short and free on all ranks, others long and free on a few of them.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.objective import Objective
from synth.solve.placed import Node, Placed
from synth.solve.precedences import requirements
from synth.solve.solution import Solution, StuckError, timed
from synth.solve.tails import tails_of
from synth.solve.view import View
from synth.solve.window import Required, Window


class _Level(NamedTuple):
    """A size of windows, and how long CP-SAT may think about one, in its deterministic seconds."""

    num_ops: int
    seconds: float


# Many small windows gain more than few large ones. Larger ones see further, and are for when the
# small ones find nothing more.
_LEVELS = (
    _Level(24, 0.03),
    _Level(40, 0.1),
    _Level(64, 0.2),
    _Level(120, 0.5),
    _Level(240, 1.0),
    _Level(480, 2.0),
    _Level(960, 5.0),
)

# Larger windows only where they are no more than half of all ops: else the exact model serves.
_ALWAYS_OPS = 240

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
_LONGEST_OPS = 2_000


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
    best = min(searches, key=lambda search: search.placed.value_us)
    best_us = best.placed.value_us

    def tell(search: _Search) -> None:
        nonlocal best_us
        if search.placed.value_us < best_us:
            best_us = search.placed.value_us
            on_better(search.placed.solution)

    for search in searches:
        share = _Effort(seconds * _RACE_SHARE / len(searches), should_stop)
        effort.seconds_left -= share.seconds_left
        for level in _LEVELS[:_RACE_LEVELS]:
            search.improve(level, share, tell)
        effort.seconds_left += share.seconds_left
    best = min(searches, key=lambda search: search.placed.value_us)
    for level in _LEVELS:
        if level.num_ops <= max(_ALWAYS_OPS, view.num_ops // 2):
            best.improve(level, effort, tell)
    return best.placed.solution


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
        self.required: Required = {
            (index, need.slot): need.alternatives
            for index, chunk in enumerate(view.chunks)
            if view.is_alone(index)
            for need in requirements(chunk, view.room_of(index))
        }
        self._use(Placed(view, objective, timed(solution.orders(view), view)))

    def _use(self, placed: Placed) -> None:
        self.placed, self.tails = placed, list(tails_of(placed, self.objective))

    def improve(self, level: _Level, effort: _Effort, tell: Callable[["_Search"], None]) -> None:
        """Re-solve windows of one size until they find nothing more."""
        patience = max(10, _COVER * self.view.num_ops // level.num_ops)
        idle = 0
        while idle < patience and not effort.is_spent():
            better, spent_s = self.round(level, effort.should_stop)
            effort.seconds_left -= spent_s + _OVERHEAD_S
            idle = 0 if better else idle + 1
            if better:
                tell(self)

    def round(self, level: _Level, should_stop: Callable[[], bool]) -> tuple[bool, float]:
        """Re-solve one random window; whether the whole got better, and what it cost."""
        nodes, free = self._choose(level.num_ops)
        model = Window(self.placed, self.tails, self.required, nodes, free)
        found = model.solve(level.seconds, self.rng.randrange(1 << 30), should_stop)
        return found is not None and self._improves(found), model.spent_s

    def _improves(self, found: Sequence[Sequence[Node]]) -> bool:
        """Take what is not worse for the whole; whether it is better."""
        orders = [[(chunk, slot.kind) for chunk, slot in order] for order in found]
        try:
            placed = Placed(self.view, self.objective, timed(orders, self.view))
        except StuckError:  # ops of no duration in a wrong order
            return False
        better = placed.value_us < self.placed.value_us
        if placed.value_us <= self.placed.value_us:
            self._use(placed)
        return better

    def _choose(self, num_ops: int) -> tuple[list[Node], frozenset[int]]:
        """Ops that start around a random moment, a run of the sequence; and the free ranks."""
        num_ranks = self.view.num_ranks
        free = frozenset(range(num_ranks))
        if num_ranks > _FREE_RANKS and self.rng.randrange(_NARROW_EVERY) == 0:
            first_rank = self.rng.randrange(num_ranks - _FREE_RANKS + 1)
            free = frozenset(range(first_rank, first_rank + _FREE_RANKS))
            num_ops = min(num_ops * num_ranks // (2 * _FREE_RANKS), _LONGEST_OPS)
        sequence = self.placed.sequence
        first = self.rng.randrange(-num_ops // 2, max(1, len(sequence) - num_ops // 2))
        return sequence[max(0, first) : first + num_ops], free
