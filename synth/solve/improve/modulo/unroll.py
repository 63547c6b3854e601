"""Schedules that repeat one micro-batch or a few, unrolled to all of them."""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from synth.solve.evaluate.evaluate import BUFFERINGS
from synth.solve.improve.modulo import one_micro_batch, several_micro_batches
from synth.solve.instance.event_graph import Graph
from synth.solve.instance.instance import View
from synth.solve.instance.memory_models import cautious
from synth.solve.instance.timing import Orders, Unrolled, keeps_caps, number, value_us
from synth.solve.problem import Problem, SolveOptions
from synth.solve.search_state import Standing

# Shares of the time limit. The more micro-batches there are, the more of the time each takes is won
# by rounds, and the less by windows.
_PATTERNS_SHARE = 0.05
_PATTERNS_SHARE_WITH_ROUNDS = 0.02
_ROUNDS_SHARE_OF_ONE = 0.004
_MOST_ROUNDS_SHARE = 0.45

# What was spent on fewer micro-batches and rounds have so much together, but rounds so much at
# least.
_SHARE_WITH_FEWER = 0.35
_LEAST_ROUNDS_SHARE = 0.08

# After fewer micro-batches, only what is better by so much is of use: windows come farther from
# what these led to (docs/solver-notes.md).
_LEAST_GAIN = 0.01

# From so many of a round's micro-batches at most it is unrolled.
_TURNS = 8


class Repeats:
    """The search for them, in the strictest view of memory.

    Args:
        spent_share: of the time limit, on fewer micro-batches (`short_instance`).
    """

    def __init__(
        self, problem: Problem, options: SolveOptions, now: Standing, spent_share: float = 0.0
    ) -> None:
        self.problem, self.options, self.now = problem, options, now
        self.spent_share = spent_share
        self.view: View = cautious(problem, BUFFERINGS[0])

    def __iter__(self) -> Iterator[Unrolled]:
        """Of one micro-batch, of few periods; of several, ever shorter ones."""
        yield from self._patterns()
        if self.now.best is not None and several_micro_batches.applies(self.view):
            yield from self._rounds(self.now.best.value_us / self._passes)

    def _patterns(self) -> Iterator[Unrolled]:
        has_rounds = several_micro_batches.applies(self.view)
        share = _PATTERNS_SHARE_WITH_ROUNDS if has_rounds else _PATTERNS_SHARE
        options, seconds = self.options, share * self.options.time_limit_s
        for found in one_micro_batch.search(
            self.view, seconds, options.seed, options.num_workers, self.now.finished
        ):
            yield from self._best([found.orders(self.view)], "pattern")

    def _rounds(self, most_us: float) -> Iterator[Unrolled]:
        """Those that take less for each micro-batch than the incumbent, its ends included."""
        seconds = self._rounds_share * self.options.time_limit_s
        until_s = self.now.elapsed_s() + seconds

        def should_stop() -> bool:
            late = not self.options.deterministic and self.now.elapsed_s() > until_s
            return late or self.now.finished()

        for found in several_micro_batches.search(
            self.view, self._least_us, most_us, seconds, self.options.seed, should_stop
        ):
            step = -(-found.size // _TURNS)
            turns = (found.orders(self.view, first) for first in range(0, found.size, step))
            yield from self._best(takewhile(lambda _: not self.now.finished(), turns), "rounds")

    @property
    def _rounds_share(self) -> float:
        share = min(_MOST_ROUNDS_SHARE, _ROUNDS_SHARE_OF_ONE * self.problem.num_micro_batches)
        if self.spent_share == 0:
            return share
        return min(share, max(_LEAST_ROUNDS_SHARE, _SHARE_WITH_FEWER - self.spent_share))

    @property
    def _passes(self) -> int:
        """Micro-batches in all that the objective counts."""
        return self.problem.num_micro_batches * self.problem.objective.iterations

    @property
    def _least_us(self) -> float:
        """What the bound leaves for each micro-batch but the first, if that goes down and up."""
        first = self.view.chunks[0]
        ends_us = first.work_us + self.view.round_trip_us[0]
        iterations = self.problem.objective.iterations
        left_us = self.now.bound_us - iterations * ends_us
        return left_us / max(1, self._passes - iterations)

    def _best(self, unrolled: Iterable[Orders], found_by: str) -> Iterator[Unrolled]:
        """The best of some orders that keep the caps, if any does."""
        view, graph, objective = self.view, Graph(self.view), self.problem.objective
        fitting = []
        for orders in unrolled:
            programs = tuple(number(view, order) for order in orders)
            if keeps_caps(programs, view):
                fitting.append(Unrolled(programs, value_us(orders, graph, objective), found_by))
        if fitting:
            best = min(fitting, key=lambda one: one.value_us)
            if self._is_of_use(best.value_us):
                yield best

    def _is_of_use(self, value_us: int) -> bool:
        if self.now.best is None or self.spent_share == 0:
            return True
        return value_us <= (1 - _LEAST_GAIN) * self.now.best.value_us
