"""Which partitions to try after those that looked best, and what none of them can beat."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.plan.cut_bounds import CutBounds
from synth.plan.cut_paths import Sizes
from synth.plan.cuts import CutSearch
from synth.solve.problem import Problem, SolveOptions, relative_gap

# Of the time given, for the bounds by which one partition is chosen.
_SHARE = 0.1


class Further(NamedTuple):
    """The problem on one more partition, none if there is none, and what finding it took."""

    problem: Problem | None
    spent_s: float = 0.0


@dataclass
class FurtherCuts:
    """The partitions of one placement.

    Where there are bounds of all of them (`cut_bounds`), those come next of which the bounds say
    least, first of those that list scheduling makes something of; elsewhere those that local search
    came by.

    Attributes:
        search: has ended.
        bounds: of all partitions, where there are such.
        poor: were judged by list scheduling and are left for later.
        shown: those that local search came by and that were returned.
    """

    search: CutSearch
    bounds: CutBounds | None
    poor: set[Sizes] = field(default_factory=set)
    shown: set[Sizes] = field(default_factory=set)

    def bound_us(self, sizes: Sizes) -> int:
        """What is known of a partition, 0 if that is nothing."""
        return 0 if self.bounds is None else self.bounds.bound_us(sizes) or 0

    def least_us(self, tried: Collection[Sizes]) -> int | None:
        """What no partition but those tried can beat; None: nothing is known of all."""
        return None if self.bounds is None else self.bounds.least(tried).bound_us

    def next(
        self,
        tried: Collection[Sizes],
        value_us: int | None,
        options: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> Further:
        """One more partition that may beat a value, and of which list scheduling makes something.

        Args:
            tried: which are not asked for.
            value_us: the best one found.
            options: the time limit is for choosing the partition.
        """
        if self.bounds is None or value_us is None:
            return Further(self._next_shown(tried))
        part, spent_s = replace(options, time_limit_s=_SHARE * options.time_limit_s), 0.0
        while not should_stop() and spent_s < options.time_limit_s:
            raised = self.bounds.raise_least(value_us, {*tried, *self.poor}, part, should_stop)
            spent_s += raised.spent_s
            bound_us, sizes = raised.least
            if sizes is None or relative_gap(value_us, bound_us) <= options.gap:
                break
            if self.search.looks_good(sizes):
                return Further(self.bounds.problem_on(sizes), spent_s)
            spent_s += self.search.judging_s
            self.poor.add(sizes)
        return Further(None, spent_s)

    def leave(self, problem: Problem) -> None:
        """Return this partition no more, unless it is asked for as the least."""
        if problem.partition is not None:
            self.poor.add(problem.partition)

    def least(self, tried: Collection[Sizes], value_us: int, gap: float) -> Problem | None:
        """The partition of which the bounds say least, whatever it looks like; None: none wins."""
        if self.bounds is None:
            return None
        bound_us, sizes = self.bounds.least(tried)
        can_win = sizes is not None and relative_gap(value_us, bound_us) > gap
        return self.bounds.problem_on(sizes) if sizes is not None and can_win else None

    def _next_shown(self, tried: Collection[Sizes]) -> Problem | None:
        for problem in self.search.all():
            if problem.partition is not None and problem.partition not in {*tried, *self.shown}:
                self.shown.add(problem.partition)
                return problem
        return None
