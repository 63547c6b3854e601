"""Offers modulo schedules to a search: several micro-batches per interval, or building blocks."""

from collections.abc import Iterator
from itertools import takewhile
from typing import ClassVar

from synth.solver.budget import Allowance
from synth.solver.improve.annealing import first_rounds_s
from synth.solver.improve.compiled_kernels import are_fast
from synth.solver.improve.improver import SearchContext
from synth.solver.improve.unrolling import Unrolling
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.modulo.building_blocks import BuildingBlocks
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.modulo.modulo_search import applies, search
from synth.solver.options import Part
from synth.solver.tuning import BUILDING_BLOCKS, MODULO


class ModuloScheduling:
    """Offers the schedules of an exact model where ranks hold one stage, and else of annealing."""

    part: ClassVar[Part] = Part.MODULO

    def __init__(self, context: SearchContext) -> None:
        self.state, self.options = context.state, context.state.options
        self.problem, self._is_alone = self.state.problem, context.setting.is_modulo_alone

    def run(self, share: float, *, is_brief: bool) -> None:
        """Search for less time per micro-batch than the incumbent takes as a whole.

        The share follows from the number of micro-batches, and from the time spent on a short
        instance if that came before.
        """
        best = self.state.best
        if best is None:
            return
        unrolling, most_us = Unrolling(self.state), best.value_us / self._passes
        found = (
            self._several_micro_batches(unrolling.instance, most_us)
            if applies(unrolling.instance)
            else self._building_blocks(unrolling.instance, most_us)
        )
        for schedule in found:
            step = -(-schedule.size // MODULO.most_unrollings)
            rotations = (
                schedule.unrolled(unrolling.instance, first).orders(unrolling.instance)
                for first in range(0, schedule.size, step)
            )
            wanted = takewhile(lambda _: not self.state.poll(), rotations)
            unrolling.offer_best(wanted, "modulo scheduling")

    def _several_micro_batches(
        self, instance: Instance, most_us: float
    ) -> Iterator[CyclicSchedule]:
        self.options.report_part(self.part)
        share = self._share(MODULO.share_per_micro_batch, MODULO.most_share)
        seconds = share * self.options.time_limit_s
        allowance = self.state.budget.allow(seconds)

        def should_stop() -> bool:
            return allowance.is_over() or self.state.poll()

        least_us = self._least_us(instance)
        return search(instance, least_us, most_us, seconds, self.options.seed, should_stop)

    def _building_blocks(self, instance: Instance, most_us: float) -> Iterator[CyclicSchedule]:
        """Yield blocks of one micro-batch of each replica, then of several, ever shorter ones."""
        counts = [copy.num_micro_batches for copy in instance.copies]
        if all(room is None for room in instance.headroom_bytes) or len(set(counts)) > 1:
            return
        self.options.report_part(self.part)
        # Plain Python takes a second for what compiled code does in milliseconds.
        waits = self.state.budget.is_deterministic
        if not are_fast(waits=waits, should_stop=self.state.poll):
            return
        is_large = first_rounds_s(instance.num_ops) > self.state.budget.left_s()
        most = BUILDING_BLOCKS.most_share_of_large if is_large else BUILDING_BLOCKS.most_share
        share = self._share(BUILDING_BLOCKS.share_per_micro_batch, most)
        part = self.state.budget.allow(share * self.options.time_limit_s)
        most_us *= len({copy.replica for copy in instance.copies})
        searches = [
            self._blocks_of(instance, size, part)
            for size in BUILDING_BLOCKS.sizes
            if len(SPLIT) * size * len(instance) <= BUILDING_BLOCKS.most_ops
            and 2 * size <= counts[0]
        ]
        for effort in BUILDING_BLOCKS.efforts:
            for smaller, blocks in zip((None, *searches), searches, strict=False):
                if smaller is not None and smaller.shortest is not None:
                    blocks.repeat(smaller.shortest)
                for found in blocks.run(0, most_us, effort):
                    most_us = min(most_us, found.rate)
                    yield found

    def _blocks_of(self, instance: Instance, size: int, part: Allowance) -> BuildingBlocks:
        """Return the search for blocks of a size within a part of the budget."""
        return BuildingBlocks(
            instance,
            size,
            self.options.seed,
            part.spend,
            lambda: part.left_s() <= 0 or self.state.poll(),
        )

    def _share(self, per_micro_batch: float, most: float) -> float:
        if self._is_alone:
            return 1.0
        share = min(most, per_micro_batch * self.problem.num_micro_batches)
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


IMPROVER = ModuloScheduling
