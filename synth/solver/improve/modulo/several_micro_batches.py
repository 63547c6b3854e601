"""Modulo scheduling of several micro-batches per period, for several sizes.

Under caps below the need of 1F1B, the best schedules repeat bursts and not single micro-batches
(`one_micro_batch`). Models of a fixed period (`several_micro_batches_model`) are decided quickly,
so the shortest period is found by trying (`period_search`).
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import ClassVar

from synth.solver.improve.improver import SearchContext
from synth.solver.improve.modulo.period_search import PeriodSearch
from synth.solver.improve.modulo.several_micro_batches_model import PeriodicSchedule, num_ops
from synth.solver.improve.modulo.unrolling import Unrolling
from synth.solver.instance.instance import Instance
from synth.solver.options import Part, SolveOptions
from synth.solver.tuning import MODULO, SEVERAL_MICRO_BATCHES


class SeveralMicroBatches:
    """Offers modulo schedules of several micro-batches per period, where ranks hold one stage."""

    part: ClassVar[Part] = Part.SEVERAL_PER_PERIOD

    def __init__(self, context: SearchContext) -> None:
        self.state, self.options = context.state, context.state.options
        self.problem = self.state.problem

    def run(self, share: float, *, is_brief: bool) -> None:
        """Search for less time per micro-batch than the incumbent takes as a whole.

        The share follows from the number of micro-batches and from the time spent on a short
        instance.
        """
        unrolling, best = Unrolling(self.state), self.state.best
        if best is None or not applies(unrolling.instance):
            return
        most_us = best.value_us / self._passes
        seconds = self._share * self.options.time_limit_s
        allowance = self.state.budget.allow(seconds)

        def should_stop() -> bool:
            return allowance.is_over() or self.state.should_stop()

        least_us = self._least_us(unrolling.instance)
        for found in search(
            unrolling.instance, least_us, most_us, seconds, self.options.seed, should_stop
        ):
            step = -(-found.size // MODULO.most_unrollings)
            rotations = (
                found.orders(unrolling.instance, first) for first in range(0, found.size, step)
            )
            unrolling.offer_best(
                takewhile(lambda _: not self.state.should_stop(), rotations), "rounds"
            )

    @property
    def _share(self) -> float:
        share = min(
            MODULO.most_several_share,
            MODULO.several_share_per_micro_batch * self.problem.num_micro_batches,
        )
        spent_share = self.state.short_instance_share
        if spent_share == 0:
            return share
        return min(
            share,
            max(MODULO.least_several_share, MODULO.share_with_short_instance - spent_share),
        )

    @property
    def _passes(self) -> int:
        """Micro-batches of all iterations that the objective counts."""
        return self.problem.num_micro_batches * self.problem.objective.iterations

    def _least_us(self, instance: Instance) -> float:
        """Return the bound per micro-batch, after the way of the first one down and up."""
        first = instance.copies[0]
        ends_us = first.work_us + instance.round_trip_us[0]
        iterations = self.problem.objective.iterations
        left_us = self.state.bound_us - iterations * ends_us
        return left_us / max(1, self._passes - iterations)


def applies(instance: Instance) -> bool:
    """Return True if every rank holds one stage copy, of one replica."""
    return all(len(held) == 1 for held in instance.held) and len(instance) == instance.num_ranks


def follows(instance: Instance, options: SolveOptions) -> bool:
    """Return True if a search comes to these schedules: they apply, and are not left out."""
    return Part.SEVERAL_PER_PERIOD not in options.without and applies(instance)


def search(
    instance: Instance,
    least_us: float,
    most_us: float,
    seconds: float,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[PeriodicSchedule]:
    """Yield schedules of ever shorter periods per micro-batch.

    Args:
        least_us: per micro-batch; nothing shorter is tried. It may be an estimate.
        most_us: per micro-batch; longer ones are of no use.
        seconds: effort for all of them together, in terms of `decide`.
    """
    sizes, is_found = list(_sizes(instance)), False
    refuted_rates_us: dict[int, float] = {}
    least_us = max(1, least_us, *(max(c.work_us, c.down_us, c.up_us) for c in instance.copies))
    for place, size in enumerate(sizes):
        # The first sizes find most; effort that they do not use is left for the others.
        share = max(SEVERAL_MICRO_BATCHES.least_share, 1 / (len(sizes) - place))
        search_of_size = PeriodSearch(
            instance, size, share * seconds, seed + place, should_stop, is_challenger=is_found
        )
        if not search_of_size.is_worth_a_try:
            continue
        # A rate that is refuted for a multiple of the size is refuted for the size too: its rounds,
        # repeated, would be rounds of the multiple.
        rates_us = (us for multiple, us in refuted_rates_us.items() if multiple % size == 0)
        shortest_us = max([least_us, *rates_us])
        for found in search_of_size.run(math.ceil(size * shortest_us), int(size * most_us)):
            most_us, is_found = min(most_us, found.rate_us), True
            yield found
        refuted_rates_us[size] = search_of_size.refuted_us / size
        seconds -= search_of_size.spent_s


def _sizes(instance: Instance) -> Iterator[int]:
    """Yield the burst that fills memory, or its largest part that fits the model, then others."""
    burst = instance.most_forwards(0)
    sizes = [*SEVERAL_MICRO_BATCHES.sizes]
    if burst < instance.copies[0].num_micro_batches:
        parts = (size for size in range(burst, 1, -1) if burst % size == 0)
        sizes = [*islice((size for size in parts if _is_worth(instance, size)), 1), *sizes]
    for size in dict.fromkeys(sizes):
        if _is_worth(instance, size):
            yield size


def _is_worth(instance: Instance, size: int) -> bool:
    num_micro_batches = min(copy.num_micro_batches for copy in instance.copies)
    return (
        num_ops(instance, size) <= SEVERAL_MICRO_BATCHES.most_ops and 2 * size <= num_micro_batches
    )


IMPROVER = SeveralMicroBatches
