"""The answer of a search for a layout: the best one, its proven distance, and the others."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from synth.layouts.judged import JudgedLayout, Unfit
from synth.layouts.question import LayoutQuestion, RunLayout


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
