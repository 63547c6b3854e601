"""Modulo schedules of one micro-batch or several per period, unrolled to all micro-batches."""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from synth.solve.evaluate.evaluate import BUFFERINGS
from synth.solve.improve.modulo import one_micro_batch, several_micro_batches
from synth.solve.instance.event_graph import Graph
from synth.solve.instance.instance import Instance
from synth.solve.instance.memory_models import safe_memory
from synth.solve.instance.timing import Orders, ScoredPrograms, keeps_caps, number, value_us
from synth.solve.search_state import SearchState
from synth.solve.tuning import MODULO


class ModuloSchedules:
    """The search for modulo schedules under the safe memory model.

    Args:
        spent_share: of the time limit, on a short instance (`short_instance`).
    """

    def __init__(self, state: SearchState, spent_share: float = 0.0) -> None:
        self.state, self.problem, self.options = state, state.problem, state.options
        self.spent_share = spent_share
        self.instance: Instance = safe_memory(self.problem, BUFFERINGS[0])

    def __iter__(self) -> Iterator[ScoredPrograms]:
        """Yield schedules of one micro-batch per period, then of several, ever shorter."""
        yield from self._patterns()
        if self.state.best is not None and several_micro_batches.applies(self.instance):
            yield from self._rounds(self.state.best.value_us / self._passes)

    def _patterns(self) -> Iterator[ScoredPrograms]:
        has_rounds = several_micro_batches.applies(self.instance)
        share = MODULO.one_share_with_several if has_rounds else MODULO.one_share
        options, seconds = self.options, share * self.options.time_limit_s
        for found in one_micro_batch.search(
            self.instance, seconds, options.seed, options.num_workers, self.state.should_stop
        ):
            yield from self._best([found.orders(self.instance)], "pattern")

    def _rounds(self, most_us: float) -> Iterator[ScoredPrograms]:
        """Yield schedules with less time per micro-batch than the incumbent as a whole."""
        seconds = self._rounds_share * self.options.time_limit_s
        allowance = self.state.budget.allow(seconds)

        def should_stop() -> bool:
            return allowance.is_over() or self.state.should_stop()

        for found in several_micro_batches.search(
            self.instance, self._least_us, most_us, seconds, self.options.seed, should_stop
        ):
            step = -(-found.size // MODULO.most_unrollings)
            turns = (found.orders(self.instance, first) for first in range(0, found.size, step))
            yield from self._best(
                takewhile(lambda _: not self.state.should_stop(), turns), "rounds"
            )

    @property
    def _rounds_share(self) -> float:
        share = min(
            MODULO.most_several_share,
            MODULO.several_share_per_micro_batch * self.problem.num_micro_batches,
        )
        if self.spent_share == 0:
            return share
        return min(
            share,
            max(MODULO.least_several_share, MODULO.share_with_short_instance - self.spent_share),
        )

    @property
    def _passes(self) -> int:
        """Micro-batches of all iterations that the objective counts."""
        return self.problem.num_micro_batches * self.problem.objective.iterations

    @property
    def _least_us(self) -> float:
        """The bound per micro-batch, after the way of the first one down and up."""
        first = self.instance.copies[0]
        ends_us = first.work_us + self.instance.round_trip_us[0]
        iterations = self.problem.objective.iterations
        left_us = self.state.bound_us - iterations * ends_us
        return left_us / max(1, self._passes - iterations)

    def _best(self, unrolled: Iterable[Orders], found_by: str) -> Iterator[ScoredPrograms]:
        """Yield the best of some orders that keep the caps, if any does and it is of use."""
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
        return value_us <= (1 - MODULO.least_gain) * self.state.best.value_us
