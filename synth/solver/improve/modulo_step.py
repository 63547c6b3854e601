"""Offers modulo schedules of several micro-batches per interval to a search."""

from itertools import takewhile
from typing import ClassVar

from synth.solver.improve.improver import SearchContext
from synth.solver.improve.unrolling import Unrolling
from synth.solver.instance.instance import Instance
from synth.solver.modulo.modulo_search import applies, search
from synth.solver.options import Part
from synth.solver.tuning import MODULO


class SeveralMicroBatches:
    """Offers modulo schedules of several micro-batches per interval, where ranks hold one stage."""

    part: ClassVar[Part] = Part.MODULO

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
        self.options.report_part(self.part)
        most_us = best.value_us / self._passes
        seconds = self._share * self.options.time_limit_s
        allowance = self.state.budget.allow(seconds)

        def should_stop() -> bool:
            return allowance.is_over() or self.state.poll()

        least_us = self._least_us(unrolling.instance)
        for found in search(
            unrolling.instance, least_us, most_us, seconds, self.options.seed, should_stop
        ):
            step = -(-found.size // MODULO.most_unrollings)
            rotations = (
                found.unrolled(unrolling.instance, first).orders(unrolling.instance)
                for first in range(0, found.size, step)
            )
            wanted = takewhile(lambda _: not self.state.poll(), rotations)
            unrolling.offer_best(wanted, "modulo scheduling")

    @property
    def _share(self) -> float:
        share = min(
            MODULO.most_share, MODULO.share_per_micro_batch * self.problem.num_micro_batches
        )
        spent_share = self.state.short_instance_share
        if spent_share == 0:
            return share
        return min(share, max(MODULO.least_share, MODULO.share_with_short_instance - spent_share))

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


IMPROVER = SeveralMicroBatches
