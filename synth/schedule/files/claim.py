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
from synth.version import __version__

# `stopped_by` of a schedule that no search found; its bound is the largest work of a rank.
NOT_SEARCHED = "not searched"


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
    solve_seconds: float | None = None
    synth_version: str
    steady: SteadyClaim | None = None

    @classmethod
    def of(cls, schedule: Schedule, costs: Costs, caps_bytes: Sequence[int] | None = None) -> Self:
        """Make the claim that the simulation supports, with the largest work of a rank as bound.

        Raises:
            ScheduleError: the schedule cannot run.
        """
        lowered, timeline = verify(schedule, costs, caps_bytes)
        value_us, bound_us = timeline.makespan_us, max(timeline.work_us)
        return cls(
            objective=str(Objective.MAKESPAN),
            makespan_us=value_us,
            period_us=timeline.period_us,
            peak_bytes=peak_bytes(lowered),
            lower_bound_us=bound_us,
            gap=(value_us - bound_us) / value_us if value_us else 0.0,
            found_by=schedule.name,
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

    def check_proof(self) -> None:
        """Check that the bound and the gap are possible for the claimed value.

        Raises:
            ScheduleError: they contradict it.
        """
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
