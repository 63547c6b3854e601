"""Large-neighbourhood search over windows of time: everything outside keeps its order.

Some windows are short and free on all ranks, others long and free on a few of them.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from synth.objective import Objective
from synth.solve.placed import Node, Placed
from synth.solve.precedences import requirements
from synth.solve.sizes import Level, Sizes
from synth.solve.solution import Solution, StuckError, timed
from synth.solve.tails import tails_of
from synth.solve.view import View
from synth.solve.window import Required, Window

# Which of them gain most for their time depends on the problem, and is learned (`Sizes`).
_LEVELS = (
    Level(24, 0.03),
    Level(48, 0.15),
    Level(96, 0.4),
    Level(192, 0.8),
    Level(384, 1.2),
    Level(960, 2.5),
)

# Larger windows only where they are no more than half of all ops: else the exact model serves.
_ALWAYS_OPS = 192

# Several starts race with the smallest sizes for so much of the effort.
_RACE_OPS = 48
_RACE_SHARE = 0.005

# What a window costs besides, in the same seconds: to build for each of its ops, to evaluate for
# each op of all.
_BUILD_S = 2e-5
_EVALUATE_S = 3e-7

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
    """Re-solve windows of split solutions; never gets worse than the best.

    All of them are improved with small windows; whichever is best then, with all sizes. A window
    is kept when it is not worse for the whole: moves between equals lead out of dead ends. Ends
    when windows find nothing more.

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

    if len(searches) > 1:
        for search in searches:
            share = _Effort(seconds * _RACE_SHARE / len(searches), should_stop)
            effort.seconds_left -= share.seconds_left
            search.improve(_RACE_OPS, share, tell)
            effort.seconds_left += share.seconds_left
        best = min(searches, key=lambda search: search.placed.value_us)
    best.improve(max(_ALWAYS_OPS, view.num_ops // 2), effort, tell)
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
        self.sizes = Sizes(_LEVELS, self.placed.value_us, view.num_ops)

    def _use(self, placed: Placed) -> None:
        self.placed, self.tails = placed, list(tails_of(placed, self.objective))

    def improve(self, most_ops: int, effort: _Effort, tell: Callable[["_Search"], None]) -> None:
        """Re-solve windows of so many ops at most until they find nothing more."""
        while not effort.is_spent():
            size = self.sizes.choose(self.rng, most_ops)
            if size is None:
                return
            before_us = self.placed.value_us
            spent_s = self._resolve(size.level, effort.should_stop)
            effort.seconds_left -= spent_s
            self.sizes.learn(size, before_us - self.placed.value_us, spent_s)
            if self.placed.value_us < before_us:
                tell(self)

    def _resolve(self, level: Level, should_stop: Callable[[], bool]) -> float:
        """Re-solve one random window, keep what is not worse for the whole; what it cost."""
        nodes, free = self._window(level.num_ops)
        model = Window(self.placed, self.tails, self.required, nodes, free)
        found = model.solve(level.seconds, self.rng.randrange(1 << 30), should_stop)
        if found is not None:
            self._take(found)
        return model.spent_s + _BUILD_S * len(nodes) + _EVALUATE_S * self.view.num_ops

    def _take(self, found: Sequence[Sequence[Node]]) -> None:
        orders = [[(chunk, slot.kind) for chunk, slot in order] for order in found]
        with suppress(StuckError):  # ops of no duration in a wrong order
            placed = Placed(self.view, self.objective, timed(orders, self.view))
            if placed.value_us <= self.placed.value_us:
                self._use(placed)

    def _window(self, num_ops: int) -> tuple[list[Node], frozenset[int]]:
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
