"""A layout that was judged: its schedule, its time by parts, its memory and its bound."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from synth.layouts.question import RunLayout
from synth.profile import Profile
from synth.schedule.files.plan_file import Plan


class LayoutTimes(NamedTuple):
    """Microseconds of a step by what they are for; of the pipeline the mean of the ranks.

    The makespan of the pipeline is all but `data_us` and what is reduced behind it.

    Attributes:
        matmul_us: matrix products and attention of F, B and W.
        memory_us: kernels that are bound by memory.
        communication_us: exchanges of tensor, context and expert parallelism that are seen.
        again_us: layers that are computed again.
        idle_us: of the pipeline: fill, drain, imbalance, and waits for links.
        reduce_us: by which the makespan is longer than without the reduction of gradients between
            data-parallel ranks, and the reduction of those that are not reduced beside compute.
        data_us: parameters between data-parallel ranks, as far as their exchange is seen.
        step_us: the optimizer, with which the pipeline ends.
    """

    matmul_us: float
    memory_us: float
    communication_us: float
    again_us: float
    idle_us: float
    reduce_us: float
    data_us: float
    step_us: float


# Begins the name of a schedule that the solver found.
SOLVED = "solved"

# In words, in the order of `LayoutTimes`.
PART_NAMES = (
    "matrices",
    "memory-bound kernels",
    "exchanges of tp, cp and ep",
    "recomputation",
    "idle time of the pipeline",
    "reduction of gradients",
    "gathering of parameters",
    "optimizer",
)


# Share of a step below which a difference is that of rounded sums.
_ROUNDED = 1e-9


@dataclass(frozen=True)
class JudgedLayout:
    """A layout with the best schedule found for it.

    Attributes:
        schedule: the name of the schedule, or of the search that found it.
        placement: of the stages, in words.
        profile: the estimate that the plan is for.
        parts: of the step's time.
        fits: within the memory limit.
        bound_us: a lower bound on the step of any schedule of the layout that fits; 0 if this one
            does not.
    """

    layout: RunLayout
    schedule: str
    placement: str
    plan: Plan
    profile: Profile
    parts: LayoutTimes
    peaks_bytes: tuple[int, ...]
    fits: bool
    bound_us: float

    @property
    def us(self) -> float:
        """The time of a step."""
        return sum(self.parts)

    @property
    def recomputed(self) -> int:
        """The number of layers that are computed again."""
        return len(self.plan.recomputed_layers or ())

    @property
    def rank_key(self) -> tuple[float, ...]:
        """The key that orders judged layouts, best first."""
        return (not self.fits, self.us, max(self.peaks_bytes))

    def with_bound(self, bound_us: float) -> "JudgedLayout":
        """The same with a bound, if that is higher."""
        assert bound_us <= self.us * (1 + _ROUNDED), (self.layout.words, bound_us, self.us)
        return replace(self, bound_us=max(self.bound_us, bound_us))


class Bounded(NamedTuple):
    """A layout with a lower bound on its step, and about the step of a usual schedule."""

    bound_us: float
    guess_us: float
    layout: RunLayout


class Unfit(NamedTuple):
    """A layout that no order makes fit, and the least memory of its fullest rank."""

    layout: RunLayout
    least_bytes: float
