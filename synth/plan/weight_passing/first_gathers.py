"""The places of collectives from which the search over data-parallel pipelines begins."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

from synth.costs.costs import Costs
from synth.plan.tuning import SHARDED_PIPELINES
from synth.plan.weight_passing.gather_moves import Program, numbered, unnumbered
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import kept_bytes, slot_levels, static_bytes
from synth.schedule.sharded_pipelines import sharded_pipelines, side_by_side
from synth.schedule.verify import lower_checked
from synth.schedule.weight_flow import Sharded, WeightFlow
from synth.solver.problem import Problem
from synth.solver.weight_passing.free_bytes import FreeBytes
from synth.solver.weight_passing.gradient_sums import rounds_of, take_sums
from synth.solver.weight_passing.unshard_placement import with_gathers
from synth.solver.weight_passing.visit_options import VisitOptions


class OrderOfOne:
    """The schedule of one pipeline, in which collectives are placed as memory allows.

    Attributes:
        schedule: the schedule, whose weights stay.
        problem: the problem of all pipelines, on the costs of whole stages.
    """

    def __init__(self, schedule: Schedule, problem: Problem) -> None:
        self.schedule, self.problem = schedule, problem
        # They are read where weights are sharded.
        self._levels = _levels_without_state(schedule, problem.costs.with_early_gradients())

    @cached_property
    def _weight_flow(self) -> WeightFlow | None:
        return self.published_places(Sharded.WEIGHTS).weights

    def published_places(self, sharded: Sharded | None) -> Schedule:
        """Return the pipelines with the places of `sharded_pipelines`."""
        if sharded is None:
            programs = self.schedule.programs
            return side_by_side(self.schedule, programs, self.problem.num_replicas, None)
        return sharded_pipelines(self.schedule, self.problem.num_replicas, sharded)

    def with_places(self, visit_options: VisitOptions, reserves: Sequence[int]) -> Schedule:
        """Return the pipelines with few all-gathers, as early as memory allows.

        Args:
            reserves: by rank of a pipeline the bytes that weights leave free.
        """
        stages = self.problem.costs.stages
        placed = (
            with_gathers(
                program,
                stages,
                visit_options,
                self._free_bytes(rank, visit_options, reserves[rank]),
            )
            for rank, program in enumerate(self.schedule.programs)
        )
        return self.with_programs(
            [unnumbered(program) for program in placed], visit_options.sharded
        )

    def with_programs(self, programs: Sequence[Program], sharded: Sharded) -> Schedule:
        """Return the pipelines with given collectives, which have no numbers yet."""
        named = [numbered(program, sharded) for program in programs]
        return side_by_side(self.schedule, named, self.problem.num_replicas, sharded)

    def _free_bytes(
        self, rank: int, visit_options: VisitOptions, reserve_bytes: int
    ) -> FreeBytes | None:
        problem = self.problem
        if problem.caps_bytes is None or visit_options.sharded != Sharded.WEIGHTS:
            return None
        kept = kept_bytes(problem.costs, problem.placement, self._weight_flow, rank)
        left = problem.caps_bytes[rank] - kept - reserve_bytes
        running, waiting = self._levels[rank]
        free = FreeBytes([left - level for level in running], [left - level for level in waiting])
        take_sums(self.schedule.programs[rank], problem.costs.stages, visit_options, free)
        return free


def first_visit_options(order: OrderOfOne, sharded: Sharded) -> Iterator[VisitOptions]:
    """Yield the choices to begin with; more open stages and longer prefetch distances need room."""
    rounds = max(rounds_of(order.schedule.programs[0]).values())
    # An op waits for an all-gather, but only STEP for a reduce-scatter at the same place.
    first = VisitOptions(
        scatter_every=rounds,
        gathers_first=True,
        sharded=sharded,
        buffering=order.schedule.buffering,
    )
    if sharded != Sharded.WEIGHTS:
        yield replace(first, ahead=len(order.schedule.programs[0]))
        return
    choices = product(SHARDED_PIPELINES.most_open, SHARDED_PIPELINES.aheads, (rounds, 1))
    for most_open, ahead, every in choices:
        yield replace(first, most_open=most_open, ahead=ahead, scatter_every=every)


def _levels_without_state(schedule: Schedule, costs: Costs) -> list[tuple[list[int], list[int]]]:
    """By rank the bytes besides static ones, while each op runs and while it waits."""
    lowered = lower_checked(schedule, costs)
    levels, found = slot_levels(lowered), []
    for rank, program in enumerate(schedule.programs):
        first = lowered.arrays.first_node[rank] + rank
        slots, static = slice(first, first + len(program)), static_bytes(lowered, rank)
        found.append(
            ((levels.running[slots] - static).tolist(), (levels.waiting[slots] - static).tolist())
        )
    return found
