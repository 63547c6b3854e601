"""Layouts that were judged, and the answer of a search: the best one and its proven distance."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from synth.layouts.question import LayoutQuestion, RunLayout
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


@dataclass(frozen=True)
class Stability:
    """The draws of the estimate's factors in which a layout was the best of the shortlist.

    The shortlist has the best layout of each kind (`kind_of`), as layouts of a kind are alike.

    Attributes:
        draws: of the factors, whose logarithms are normally distributed.
        is_cut_short: the time was over before all draws.
        wins: by place in the shortlist.
        median_regret: of the chosen layout over the best of each draw, as a share: the median.
        worst_regret: the largest.
    """

    draws: int
    is_cut_short: bool
    wins: tuple[int, ...]
    median_regret: float
    worst_regret: float

    def data(self) -> dict[str, Any]:
        """Return the fields for scripts."""
        return asdict(self)


@dataclass
class LayoutAnswer:
    """What a search has found so far.

    Attributes:
        legal: the number of legal layouts.
        bounded: of those, that have a bound; all, unless the time was over.
        unfit: of the bounded ones, in which no order fits into the memory limit.
        is_interrupted: the search was ended before its time was over.
        judged: by published schedules or the solver.
        ranked: layouts that fit with their best schedule, best first.
        also: layouts that were named, by the text that named them; None: no schedule exists.
        bound_us: no legal layout takes less for a step, under this cost model; None: not known yet.
        stability: of the choice; None: not computed.
        is_complete: every layout whose bound is below the best step was judged.
        closest_unfit: of the unfit layouts the one that needs the least memory; None: none is.
        closest_judged: the same of the layouts whose schedules exceed the memory limit.
    """

    question: LayoutQuestion
    legal: int = 0
    bounded: int = 0
    unfit: int = 0
    judged: int = 0
    ranked: list[JudgedLayout] = field(default_factory=list)
    also: dict[str, JudgedLayout | None] = field(default_factory=dict)
    bound_us: float | None = None
    stability: Stability | None = None
    is_complete: bool = False
    is_interrupted: bool = False
    closest_unfit: Unfit | None = None
    closest_judged: JudgedLayout | None = None

    @property
    def best(self) -> JudgedLayout | None:
        """The fastest layout that fits."""
        return self.ranked[0] if self.ranked else None

    @property
    def gap(self) -> float | None:
        """(step − bound) / step of the best layout."""
        if self.best is None or self.bound_us is None:
            return None
        return max(0.0, 1 - self.bound_us / self.best.us)

    def add(self, judged: JudgedLayout) -> None:
        """Keep a layout that fits, with the better of its schedules."""
        same = next((one for one in self.ranked if one.layout == judged.layout), None)
        bound_us = judged.bound_us
        if same is not None:
            bound_us = max(bound_us, same.bound_us)
            self.ranked.remove(same)
            judged = min(same, judged, key=lambda one: one.rank_key)
        self.ranked.append(judged.with_bound(bound_us))
        self.ranked.sort(key=lambda one: one.rank_key)

    def add_unfit(self, unfit: Unfit) -> None:
        """Keep an unfit layout if it needs less memory than those before."""
        known = self.closest_unfit
        if known is None or unfit.least_bytes < known.least_bytes:
            self.closest_unfit = unfit

    def add_too_large(self, judged: JudgedLayout) -> None:
        """Keep a layout whose schedule exceeds the memory limit less than those before."""
        known = self.closest_judged
        if known is None or max(judged.peaks_bytes) < max(known.peaks_bytes):
            self.closest_judged = judged

    def so_far(self) -> "LayoutAnswer":
        """The answer as it is now, which a search that goes on does not change."""
        return replace(self, ranked=list(self.ranked), also=dict(self.also))

    def best_of_each(self) -> Sequence[JudgedLayout]:
        """The best layout for each number of ranks of tensor parallelism and of the pipeline."""
        found: dict[tuple[int, int], JudgedLayout] = {}
        for one in self.ranked:
            found.setdefault(kind_of(one.layout), one)
        return tuple(found.values())


def kind_of(layout: RunLayout) -> tuple[int, int]:
    """The ranks of tensor parallelism and of the pipeline."""
    return layout.groups.tensor, layout.ranks
