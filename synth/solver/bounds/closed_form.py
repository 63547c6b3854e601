"""Closed-form lower bounds on the objective, valid for every schedule, fused or not.

Bounds of the period are over schedules that take micro-batches in order on every rank: a schedule
that began with another one than 0 would start later, and its period would count less. For the
makespan the order is no restriction, since micro-batches are identical.

All functions take `relaxed_for_fusion` instances, in which B and W together never cost more than
BW, so the bounds hold for schedules with BW too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from synth.objective import Objective, Spans
from synth.schedule.files.certificate import Certificate, ProvenBound, ProverName
from synth.solver.bounds.bound import BoundSetting
from synth.solver.bounds.in_flight import in_flight_bounds
from synth.solver.bounds.link_load import link_bounds
from synth.solver.bounds.ramps import ramp_bounds
from synth.solver.bounds.rechecker import Rechecker
from synth.solver.cpsat.run import TimedBounds
from synth.solver.instance.instance import B, F, Instance, W
from synth.solver.options import Part, SolveOptions


def work_bound_us(instance: Instance, objective: Objective) -> int:
    """The best closed form over all ranks and links; for a sum of spans the sum of both."""
    return objective.value_us(work_bounds(instance))


def work_bounds(instance: Instance) -> Spans:
    """Closed-form bounds of makespan and period, from ranks, links and memory for activations."""
    return Spans.most([*rank_bounds(instance), link_bounds(instance), in_flight_bounds(instance)])


def work_bounds_of_search(instance: Instance, options: SolveOptions) -> Spans:
    """Closed-form bounds of the makespan and of the period; 0 if the search leaves them out."""
    return Spans(0, 0) if Part.CLOSED_FORMS in options.without else work_bounds(instance)


def rank_bounds(instance: Instance) -> list[Spans]:
    """Closed-form bounds from the work and the memory of each rank alone."""
    return [rank_bound(instance, rank) for rank in range(instance.num_ranks)]


def rank_bound(instance: Instance, rank: int) -> Spans:
    """Closed-form bounds from the work and the memory of one rank alone."""
    of_kind = (_RankBounds(instance, is_period, rank) for is_period in (False, True))
    return Spans(*map(max, of_kind))


class _RankBounds:
    """Bounds from one rank's work and memory, and their consequences for the ranks above.

    A rank cannot start before its head (Carlier 1982): the first F that reaches it has passed all
    stages before. The makespan counts from 0, the period of a rank from its own start, its origin.
    Where origins differ between schedules, only the time after the first start counts.
    """

    def __init__(self, instance: Instance, is_period: bool, rank: int) -> None:
        self.instance, self.rank, self.held = instance, rank, instance.held[rank]
        copies = (instance[c] for c in self.held)
        self.again_us = sum(copy.num_micro_batches * copy.again_us for copy in copies)
        self.is_period = is_period
        self.starts_vary = self.is_period and instance.origins_us is None
        self.head = min(instance.head_us[c] for c in self.held)
        self.origin = self._origin(rank)
        self.total = {
            kind: sum(instance[c].total_us(kind) for c in self.held) for kind in (F, B, W)
        }
        self.steps = instance.step_us(rank)

    def _origin(self, rank: int) -> int:
        if not self.is_period:
            return 0
        return self.head if self.instance.origins_us is None else self.instance.origins_us[rank]

    def __iter__(self) -> Iterator[int]:
        """Yield every closed form."""
        yield self.head + sum(self.total.values()) + self.again_us + self.steps - self.origin
        yield self._first_b() + self.total[B] + self.total[W] + self.steps - self.origin
        yield self.head + self._memory_time() + self.steps - self.origin
        if not self.starts_vary:
            for end in ramp_bounds(
                self.instance, self.rank, self._first_b(), is_period=self.is_period
            ):
                yield end - self.origin
        if not self.starts_vary and not any(copy.replica for copy in self.instance.copies):
            yield from self._ways_up()

    def _first_b(self) -> int:
        """Bound the start of the first B: F and a round trip after the rank's first start."""
        instance = self.instance
        trips = [instance[c].duration_us[F] + instance.round_trip_us[c] for c in self.held]
        if self.starts_vary:
            return self.head + min(trips)
        return min(instance.head_us[c] + trip for c, trip in zip(self.held, trips, strict=True))

    def _memory_time(self) -> int:
        """Bound the time by memory: the sum of bytes times lifetime, divided by the headroom.

        A value's lifetime is at least its shortest, for example a round trip for what F keeps.
        """
        instance, headroom, needed = self.instance, self.instance.headroom_bytes[self.rank], 0
        if not headroom:
            return 0
        for lifetime in instance.lifetimes:
            copy = instance[lifetime.made[0]]
            if copy.rank == self.rank:
                each = lifetime.num_bytes * instance.shortest_lifetime_us(lifetime)
                needed += copy.num_micro_batches * each
        return -(-needed // headroom)

    def _ways_up(self) -> Iterator[int]:
        """Yield bounds from the last B of the rank's first stage and its gradient's way upwards.

        It ends after all F's and B's, and no sooner than all B's after the first start. On each
        rank that the gradient then reaches, a B, a W and the STEPs are left.
        """
        instance, first = self.instance, self.held[0]
        last_b = max(self.head + self.total[F], self._first_b()) + self.total[B]
        for above, way_us in instance.ways_up_us(first):
            copy = instance[above]
            left = copy.duration_us[B] + copy.duration_us[W] + instance.step_us(copy.rank)
            yield last_b + way_us + left - self._origin(copy.rank)


@dataclass(frozen=True)
class ClosedForms:
    """The best closed form of a problem; it takes no time."""

    part: ClassVar[Part] = Part.CLOSED_FORMS
    prover: ClassVar[ProverName] = ProverName.CLOSED_FORMS

    bound_us: int

    @classmethod
    def of(cls, setting: BoundSetting) -> Self:
        """Evaluate all closed forms."""
        return cls(work_bound_us(setting.instance, setting.objective))

    def prove(self, limit_s: float) -> TimedBounds:
        """Yield the bound, whatever the limit."""
        yield ProvenBound.by_closed_forms(self.bound_us)
        return 0.0

    @classmethod
    def recheck(cls, certificate: Certificate, again: Rechecker) -> None:
        """Refute a claim above the closed forms, which are compared before any recheck."""
        again.require(again.objective.value_us(again.work) >= again.claimed_us)


BOUND = ClosedForms
