"""The answer of a search: schedule, bound, baselines, and the reason why it ended."""

from dataclasses import dataclass

from synth.objective import BoundScope
from synth.schedule.files.certificate import Certificate
from synth.schedule.model import Schedule
from synth.schedule.simulate import Timeline
from synth.search.outcome import StoppedBy, relative_gap
from synth.solver.problem import Problem


@dataclass(frozen=True)
class Baseline:
    """A published schedule on the costs of its partition.

    Attributes:
        work_us: the largest work of a rank, all that is done twice counted twice.
        mean_work_us: the mean work of a rank, counted likewise.
        fits: True if it keeps the caps.
        keeps_saved: True if the values that F saves stay where they are. Bounds of the search do
            not hold for schedules that rebuild or move them.
        offloads: True if they move to the host's memory or to another rank.
        partition: layers of each stage, if not those of the result.
    """

    name: str
    makespan_us: int
    period_us: int
    work_us: int
    peak_bytes: tuple[int, ...]
    fits: bool
    keeps_saved: bool = True
    mean_work_us: float = 0.0
    offloads: bool = False
    partition: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SteadyBaseline:
    """A published schedule without a flush on the same costs; `us` is None if it is never full."""

    name: str
    us: float | None
    delay: int
    versions: int
    peak_bytes: tuple[int, ...]
    fits: bool


@dataclass(frozen=True)
class SteadyProof:
    """The time of a micro-batch of a pipeline without a flush while it is full, and its bounds.

    Attributes:
        us: simulated.
        lower_bound_us: the lower bound of all schedules of the same rule whose stages take
            micro-batches in order.
        repeating_us: a bound of those whose order repeats with every micro-batch, by modulo models.
        baselines: the published schedules of the same rule.
    """

    us: float
    lower_bound_us: float
    repeating_us: float
    baselines: tuple[SteadyBaseline, ...] = ()

    @property
    def gap(self) -> float:
        """(us − lower bound) / us."""
        return (self.us - self.lower_bound_us) / self.us if self.us else 0.0


@dataclass(frozen=True)
class Incumbent:
    """A step of progress: a better verified schedule, or a better bound of the same one."""

    elapsed_s: float
    schedule: Schedule
    timeline: Timeline
    value_us: int
    lower_bound_us: int
    found_by: str
    peak_bytes: tuple[int, ...]
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None
    steady: SteadyProof | None = None

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return relative_gap(self.value_us, self.lower_bound_us)


@dataclass(frozen=True)
class Result:
    """The best schedule found, and what is proven about it.

    Every value is an exact simulation of a verified schedule. Without a schedule, `schedule`,
    `timeline`, `value_us`, `gap` and `found_by` are None, and `message` says why. `certificate` is
    that of the bound, if it has one. `steady` is of searches without a flush.
    """

    problem: Problem
    schedule: Schedule | None
    timeline: Timeline | None
    value_us: int | None
    lower_bound_us: int
    peak_bytes: tuple[int, ...] | None
    found_by: str | None
    stopped_by: StoppedBy
    baselines: tuple[Baseline, ...]
    wall_s: float
    message: str | None = None
    bound_scope: BoundScope = BoundScope.PARTITION
    certificate: Certificate | None = None
    steady: SteadyProof | None = None

    @property
    def gap(self) -> float | None:
        """(value − bound) / value."""
        return None if self.value_us is None else relative_gap(self.value_us, self.lower_bound_us)
