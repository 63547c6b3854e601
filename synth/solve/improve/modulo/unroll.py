"""Schedules that repeat one micro-batch or a few, unrolled to all of them."""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from synth.solve.evaluate.evaluate import BUFFERINGS
from synth.solve.improve.modulo import one_micro_batch, several_micro_batches
from synth.solve.instance.event_graph import Graph
from synth.solve.instance.instance import Instance
from synth.solve.instance.memory_models import safe_memory
from synth.solve.instance.timing import Orders, ScoredPrograms, keeps_caps, number, value_us
from synth.solve.problem import Problem, SolveOptions
from synth.solve.search_state import SearchState

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


class ModuloSchedules:
    """The search for them, in the strictest instance of memory.

    Args:
        spent_share: of the time limit, on fewer micro-batches (`short_instance`).
    """

    def __init__(
        self, problem: Problem, options: SolveOptions, state: SearchState, spent_share: float = 0.0
    ) -> None:
        self.problem, self.options, self.state = problem, options, state
        self.spent_share = spent_share
        self.instance: Instance = safe_memory(problem, BUFFERINGS[0])

    def __iter__(self) -> Iterator[ScoredPrograms]:
        """Of one micro-batch, of few periods; of several, ever shorter ones."""
        yield from self._patterns()
        if self.state.best is not None and several_micro_batches.applies(self.instance):
            yield from self._rounds(self.state.best.value_us / self._passes)

    def _patterns(self) -> Iterator[ScoredPrograms]:
        has_rounds = several_micro_batches.applies(self.instance)
        share = _PATTERNS_SHARE_WITH_ROUNDS if has_rounds else _PATTERNS_SHARE
        options, seconds = self.options, share * self.options.time_limit_s
        for found in one_micro_batch.search(
            self.instance, seconds, options.seed, options.num_workers, self.state.finished
        ):
            yield from self._best([found.orders(self.instance)], "pattern")

    def _rounds(self, most_us: float) -> Iterator[ScoredPrograms]:
        """Those that take less for each micro-batch than the incumbent, its ends included."""
        seconds = self._rounds_share * self.options.time_limit_s
        until_s = self.state.elapsed_s() + seconds

        def should_stop() -> bool:
            late = not self.options.deterministic and self.state.elapsed_s() > until_s
            return late or self.state.finished()

        for found in several_micro_batches.search(
            self.instance, self._least_us, most_us, seconds, self.options.seed, should_stop
        ):
            step = -(-found.size // _TURNS)
            turns = (found.orders(self.instance, first) for first in range(0, found.size, step))
            yield from self._best(takewhile(lambda _: not self.state.finished(), turns), "rounds")

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
        first = self.instance.copies[0]
        ends_us = first.work_us + self.instance.round_trip_us[0]
        iterations = self.problem.objective.iterations
        left_us = self.state.bound_us - iterations * ends_us
        return left_us / max(1, self._passes - iterations)

    def _best(self, unrolled: Iterable[Orders], found_by: str) -> Iterator[ScoredPrograms]:
        """The best of some orders that keep the caps, if any does."""
        instance, graph, objective = self.instance, Graph(self.instance), self.problem.objective
        fitting = []
        for orders in unrolled:
            programs = tuple(number(instance, order) for order in orders)
            if keeps_caps(programs, instance):
                fitting.append(
                    ScoredPrograms(programs, value_us(orders, graph, objective), found_by)
                )
        if fitting:
            best = min(fitting, key=lambda one: one.value_us)
            if self._is_of_use(best.value_us):
                yield best

    def _is_of_use(self, value_us: int) -> bool:
        if self.state.best is None or self.spent_share == 0:
            return True
        return value_us <= (1 - _LEAST_GAIN) * self.state.best.value_us
