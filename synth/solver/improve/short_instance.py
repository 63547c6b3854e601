"""Solve a shorter instance exactly, then extend its schedule by its steady-state segment.

Below 1F1B's memory, with one stage per rank, the best schedules are bursts with idle time between
them, and all but the first and the last ones are alike. An instance with just enough micro-batches
for these and one burst between is short enough for the exact model (notes/solver.md). With
several stages per rank that holds at half of 1F1B's memory and below, and the exact model needs the
other parts of the search.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from synth.schedule.model import Schedule
from synth.solver.evaluate.evaluate import BUFFERINGS
from synth.solver.improve.extend import extend, extended_instance
from synth.solver.improve.improver import SearchContext
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.instance.memory_models import safe_memory
from synth.solver.instance.timing import ScoredPrograms, keeps_caps, order_of
from synth.solver.modulo import modulo_search
from synth.solver.options import Part, SolverName
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from synth.solver.tuning import SHORT_INSTANCE

# Parts of the search for the short instance: enough starts for the exact model, which needs more
# help where ranks hold several stages.
_PARTS = frozenset({Part.FAMILIES, Part.LIST_SCHEDULING, Part.CLOSED_FORMS, Part.EXACT})
_PARTS_OF_SEVERAL = frozenset(Part) - {Part.SHORT_INSTANCE, Part.BOUNDS}
# Schedules that are extended before that search ends; list schedules of the whole are known anyway.
_FOUND_BY = (*SolverName, Part.WINDOWS)


class ShortInstance:
    """The short instance, and the extensions of its schedules."""

    part: ClassVar[Part] = Part.SHORT_INSTANCE

    def __init__(self, context: SearchContext) -> None:
        self.context, self.state = context, context.state
        self.instance = context.fusion_relaxed
        self.asked, self.options = self.state.problem, self.state.options

    @cached_property
    def left_out(self) -> int:
        """The number of micro-batches left out; 0 if a short instance is of no use."""
        count = self.asked.num_micro_batches
        left_out = (
            self._left_out_of_bursts
            if modulo_search.applies(self.instance)
            else self._left_out_of_any
        )
        return left_out if count - left_out <= SHORT_INSTANCE.most_kept_share * count else 0

    @property
    def _left_out_of_bursts(self) -> int:
        """A multiple of the burst."""
        if self._burst is None:
            return 0
        left_out = self.asked.num_micro_batches - self._most_kept
        return left_out - left_out % self._burst

    @property
    def _left_out_of_any(self) -> int:
        """All micro-batches for which there is no time, with one replica of the stages."""
        if self.asked.num_replicas > 1 or not self._is_tight:
            return 0
        most_ops = math.isqrt(int(self._limit_s / SHORT_INSTANCE.s_per_pair_of_several))
        kept = min(self._most_kept, most_ops // (len(self.instance) * len(SPLIT)))
        return self.asked.num_micro_batches - kept if kept > self.asked.num_ranks else 0

    @property
    def _most_kept(self) -> int:
        return math.ceil(SHORT_INSTANCE.micro_batches_per_rank * self.asked.num_ranks)

    @property
    def _burst(self) -> int | None:
        """The most micro-batches that the tightest rank holds, if fewer than 1F1B; else None."""
        num_ranks = self.asked.num_ranks
        taken = (self._strict.most_forwards(rank) for rank in range(num_ranks))
        return min(
            (burst for rank, burst in enumerate(taken) if burst < num_ranks - rank), default=None
        )

    @property
    def _is_tight(self) -> bool:
        """True if some rank can hold at most half of the forwards that 1F1B holds there."""
        headrooms = (
            (held, self._strict.headroom_in_forwards(held[0])) for held in self._strict.held
        )
        return any(
            headroom is not None
            and headroom <= SHORT_INSTANCE.tight_share * self.asked.num_ranks * len(held)
            for held, headroom in headrooms
        )

    @cached_property
    def _strict(self) -> Instance:
        return safe_memory(self.asked, BUFFERINGS[0])

    @property
    def problem(self) -> Problem:
        """The problem with fewer micro-batches."""
        return replace(self.asked, num_micro_batches=self.asked.num_micro_batches - self.left_out)

    @property
    def is_worth(self) -> bool:
        """True if there is time for the expected effort."""
        num_ops = len(self.instance) * len(SPLIT) * self.problem.num_micro_batches
        needed_s = SHORT_INSTANCE.s_per_pair * num_ops**2
        return (
            self.left_out > 0 and num_ops <= SHORT_INSTANCE.most_ops and needed_s <= self._limit_s
        )

    @property
    def _limit_s(self) -> float:
        return SHORT_INSTANCE.share * max(0.0, self.state.budget.left_s())

    def run(self, share: float, *, is_brief: bool) -> None:
        """Search the short instance if that is worth it, for a share of its own."""
        if self.is_worth:
            self.options.report_part(self.part)
            self.state.short_instance_share = self._run()

    def _run(self) -> float:
        """Search the short instance, and extend its schedules to the whole problem.

        The last schedule is always extended, earlier ones as time allows, but none if the search
        must be repeatable.

        Returns:
            The share of the time limit that it took.
        """
        parts = _PARTS_OF_SEVERAL if self.instance.holds_several else _PARTS
        options = replace(
            self.options,
            time_limit_s=self._limit_s,
            gap=0.0,
            workers=self.context.workers,
            hint=None,
            without=self.options.without | (frozenset(Part) - parts),
        )
        began_s = again_s = self.state.budget.elapsed_s
        made: Schedule | None = None

        def take_extended(schedule: Schedule) -> None:
            nonlocal made
            if made is not None and schedule.programs == made.programs:
                return
            made = schedule
            for scored in self.extended_programs(schedule):
                if self.state.improves(scored.value_us):
                    self.state.try_scored(scored)

        def on_improvement(found: Incumbent) -> None:
            nonlocal again_s
            at_s = self.state.budget.elapsed_s
            is_due = at_s >= again_s and found.found_by in _FOUND_BY
            if is_due and not self.options.deterministic:
                take_extended(found.schedule)
                again_s = at_s + (1 + SHORT_INSTANCE.pauses) * (self.state.budget.elapsed_s - at_s)

        last = self.context.search(self.problem, options, on_improvement).schedule
        if last is not None:
            take_extended(last)
        if self.options.deterministic:
            return options.time_limit_s / self.options.time_limit_s
        return (self.state.budget.elapsed_s - began_s) / self.options.time_limit_s

    def extended_programs(self, schedule: Schedule) -> Iterator[ScoredPrograms]:
        """Yield the extensions of a schedule of the short instance, best first."""
        instance, objective = safe_memory(self.problem, schedule.buffering), self.asked.objective
        orders = tuple(tuple(order_of(instance, program)) for program in schedule.programs)
        whole = extended_instance(instance, self.left_out)
        for scored in extend(instance, orders, self.left_out, objective, self.state.poll):
            programs = scored.programs(whole)
            if keeps_caps(programs, whole):
                yield ScoredPrograms(programs, scored.value_us, Part.SHORT_INSTANCE)


IMPROVER = ShortInstance
