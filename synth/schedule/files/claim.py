"""The claim of a plan file: times, peaks and a bound, which anyone can check again."""

from collections.abc import Sequence
from typing import Self

from pydantic import Field, NonNegativeInt

from synth.costs.costs import Costs
from synth.objective import BoundScope, Objective
from synth.records.field_types import PlainText
from synth.records.record import Record
from synth.schedule.error import ScheduleError
from synth.schedule.files.certificate import Certificate
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from synth.schedule.steady_state import steady_us
from synth.schedule.verify import verify
from synth.units import shown
from synth.version import __version__

# `stopped_by` of a schedule that no search found; its bound is the largest work of a rank.
NOT_SEARCHED = "not searched"

# The scope of the bound of such a schedule.
SAME_OPS = "schedules with the same ops"

# `stopped_by` of a plan that a search wrote before it ended.
STILL_SEARCHING = "nothing yet: the search went on when this was written"

# The end of `stopped_by` where it is about the steady state.
IN_STEADY_STATE = " in the steady state"

# The reasons for which searches end (`synth.search.outcome.StoppedBy`); plans of earlier versions
# call it exhausted if nothing better was found.
OPTIMAL, INFEASIBLE = "optimal", "infeasible"
REASONS = (OPTIMAL, INFEASIBLE, "gap", "time limit", "nothing better found", "interrupt")
EARLIER_REASONS = ("exhausted",)

# Searches without a flush count in ticks, and call a time optimal that is within one of its bound.
# A tick is a smaller part of the time than this.
_TICK = 1e-4


class SteadyClaim(Record):
    """The claim about a schedule without a flush while its pipeline is full, in microseconds.

    `lower_bound_us` is of all schedules of the same versions, in closed form, and `repeating_us` a
    bound of those whose order repeats with every micro-batch.
    """

    micro_batch_us: float = Field(ge=0)
    lower_bound_us: float = Field(ge=0)
    repeating_us: float = Field(ge=0)

    @property
    def gap(self) -> float:
        """(time − lower bound) / time."""
        us = self.micro_batch_us
        return (us - self.lower_bound_us) / us if us else 0.0

    def check(self, timeline: Timeline) -> None:
        """Compare with the simulation.

        Raises:
            ScheduleError: the time differs, or a bound contradicts it.
        """
        us = steady_us(timeline)
        if us is None or abs(us - self.micro_batch_us) > 1e-9 * max(us, 1.0):
            raise ScheduleError(
                f"the file claims {self.micro_batch_us} µs for a micro-batch while the pipeline "
                f"is full, simulating its programs gives {us}"
            )
        if self.lower_bound_us > self.micro_batch_us:
            raise ScheduleError(
                f"the lower bound of the steady state, {self.lower_bound_us} µs, is above its "
                f"time, {self.micro_batch_us} µs"
            )
        if self.lower_bound_us > self.repeating_us * (1 + 1e-9):
            raise ScheduleError(
                f"the lower bound of the steady state, {self.lower_bound_us} µs, is above that of "
                f"orders that repeat, {self.repeating_us} µs, for which it holds, too"
            )


class Claim(Record):
    """The solver's claim about a schedule; `check` simulates the schedule again and compares.

    `bound_holds_for` names the partitions for which `lower_bound_us` is proven; a bound for several
    also holds for this one. Files without it mean this partition. `certificate` says how the bound
    was proven; files before version 4 have none. `steady` is of searches without a flush.
    """

    objective: str
    makespan_us: NonNegativeInt
    period_us: NonNegativeInt
    peak_bytes: tuple[NonNegativeInt, ...]
    lower_bound_us: NonNegativeInt
    gap: float = Field(ge=0, le=1)
    bound_holds_for: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None
    found_by: PlainText
    stopped_by: PlainText
    seed: int | None = None
    solve_seconds: float | None = Field(default=None, ge=0)
    synth_version: PlainText
    steady: SteadyClaim | None = None

    @classmethod
    def of(cls, schedule: Schedule, costs: Costs, caps_bytes: Sequence[int] | None = None) -> Self:
        """Make the claim that the simulation supports, with `Timeline.least_us` as bound.

        Raises:
            ScheduleError: the schedule cannot run.
        """
        return cls.of_timeline(verify(schedule, costs, caps_bytes)[1])

    @classmethod
    def of_timeline(cls, timeline: Timeline) -> Self:
        """Make the claim of a verified schedule from its simulation."""
        lowered = timeline.lowered
        value_us, bound_us = timeline.makespan_us, timeline.least_us
        return cls(
            objective=str(Objective.MAKESPAN),
            makespan_us=value_us,
            period_us=timeline.period_us,
            peak_bytes=peak_bytes(lowered),
            lower_bound_us=bound_us,
            gap=(value_us - bound_us) / value_us if value_us else 0.0,
            found_by=lowered.schedule.name,
            stopped_by=NOT_SEARCHED,
            synth_version=__version__,
        )

    @property
    def judged_by(self) -> Objective:
        """The objective of the bound and of the gap.

        Raises:
            ValueError: the objective in the file is unknown.
        """
        return Objective.parse(self.objective)

    @property
    def value_us(self) -> int:
        """The objective's value."""
        return self.judged_by.value_us(self)

    def check_steady(self, timeline: Timeline) -> None:
        """Check the claim about the steady state, if there is one; see `SteadyClaim.check`."""
        if self.steady is not None:
            self.steady.check(timeline)

    def check_end(self, *, is_of_memory: bool) -> None:
        """Check that the reason why the search ended fits the gap that it left.

        Args:
            is_of_memory: the search was for the least memory limit, so the reason is about that.
        """
        said = f"stopped_by is {shown(self.stopped_by)}"
        reason = self.stopped_by.removesuffix(IN_STEADY_STATE)
        if reason != self.stopped_by and self.steady is None:
            raise ScheduleError(f"{said}, and the claim has no steady state")
        if reason not in (*REASONS, *EARLIER_REASONS, NOT_SEARCHED, STILL_SEARCHING):
            raise ScheduleError(f"{said}; known: {', '.join((*REASONS, NOT_SEARCHED))}")
        if reason == INFEASIBLE:
            raise ScheduleError(f"{said}: that no schedule exists; the file holds one")
        gap = self.gap if self.steady is None else max(0.0, self.steady.gap - _TICK)
        if reason == OPTIMAL and gap and not is_of_memory:
            raise ScheduleError(f"{said}, and the bound leaves a gap of {gap:.2%}")

    def check_certificate(self, num_ranks: int, num_layers: int) -> None:
        """Check that the certificate names ranks and layers of the plan."""
        if self.certificate is None:
            return
        for one in (self.certificate, *(each.certificate for each in self.certificate.partitions)):
            ranks = {*one.ranks, *(run.rank for run in one.layer_runs)}
            ranks.update(*(lemma.ranks for lemma in one.forward_spacings))
            ranks.update(*(lemma.ranks for lemma in one.joint_spacings))
            ranks.update(*(lemma.ranks for lemma in one.idle_times))
            if ranks and max(ranks) >= num_ranks:
                raise ScheduleError(
                    f"the certificate names rank {max(ranks)}, and there are {num_ranks} ranks"
                )
            if any(not run.first < run.end <= num_layers for run in one.layer_runs):
                raise ScheduleError(f"the certificate names layers that are not of {num_layers}")
        for part in self.certificate.partitions:
            if sum(part.sizes) != num_layers:
                raise ScheduleError(
                    f"the certificate names a partition of {sum(part.sizes)} layers, and there are "
                    f"{num_layers}"
                )

    def check_proof(self) -> None:
        """Check that the bound and the gap are possible for the claimed value."""
        try:
            value_us = self.value_us
        except ValueError as error:
            raise ScheduleError(f"objective: {error}") from None
        if self.lower_bound_us > value_us:
            raise ScheduleError(
                f"lower_bound_us {self.lower_bound_us} is above the {self.judged_by.words}, "
                f"{value_us} µs"
            )
        gap = (value_us - self.lower_bound_us) / value_us if value_us else 0.0
        if abs(gap - self.gap) > 1e-9:
            raise ScheduleError(f"gap is {self.gap}, but the bound and the value make it {gap}")
