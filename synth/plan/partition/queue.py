"""Queue of partitions to try, and a bound on the untried ones."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.plan.partition.bounds import PartitionBounds
from synth.plan.partition.paths import Sizes
from synth.plan.partition.search import PartitionSearch
from synth.solve.options import SolveOptions
from synth.solve.problem import Problem
from synth.solve.result import relative_gap

# Of the time given, for the bounds by which one partition is chosen.
_SHARE = 0.1

# What naming one partition counts, where seconds are counted and not measured.
_CHOOSING_S = 0.01


class NextPartition(NamedTuple):
    """The problem on one more partition, none if there is none, and what finding it took."""

    problem: Problem | None
    spent_s: float = 0.0


@dataclass
class PartitionQueue:
    """The partitions of one placement.

    Where there are bounds of all of them (`bounds`), those come next of which the bounds say
    least, first of those that list scheduling makes something of; elsewhere those that local search
    came by.

    Attributes:
        search: has ended.
        bounds: of all partitions, where there are such.
        poor: were judged by list scheduling and are left for later.
        out: the lower bounds of partitions that cannot win.
        shown: partitions of local search that were returned.
    """

    search: PartitionSearch
    bounds: PartitionBounds | None
    poor: set[Sizes] = field(default_factory=set)
    out: dict[Sizes, int] = field(default_factory=dict)
    shown: set[Sizes] = field(default_factory=set)

    def bound_us(self, sizes: Sizes) -> int:
        """Return the lower bound of a partition; 0 without one."""
        return 0 if self.bounds is None else self.bounds.bound_us(sizes) or 0

    def least_us(self, tried: Collection[Sizes]) -> int | None:
        """Return the lower bound over all untried partitions; None without bounds over all."""
        if self.bounds is None:
            return None
        return min((self.bounds.least({*tried, *self.out}).bound_us, *self.out.values()))

    def next(
        self,
        tried: Collection[Sizes],
        value_us: int | None,
        options: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> NextPartition:
        """One more partition that may beat a value, and of which list scheduling makes something.

        Args:
            tried: partitions to skip.
            value_us: the best one found.
            options: the time limit is for choosing the partition.
        """
        if self.bounds is None or value_us is None:
            return NextPartition(self._next_shown(tried), _CHOOSING_S)
        part, spent_s = replace(options, time_limit_s=_SHARE * options.time_limit_s), 0.0
        self.search.should_stop = should_stop
        while not should_stop() and spent_s < options.time_limit_s:
            without = {*tried, *self.out, *self.poor}
            (bound_us, sizes), seconds = self.bounds.raise_least(
                value_us, without, part, should_stop
            )
            spent_s += seconds + self.search.judging_s
            if sizes is None or relative_gap(value_us, bound_us) <= options.gap:
                break
            if self.search.looks_good(sizes):
                return NextPartition(self.bounds.problem_on(sizes), spent_s)
            self.poor.add(sizes)
        return NextPartition(None, spent_s)

    def leave_out(self, problem: Problem, bound_us: int) -> None:
        """Return a partition no more, as what is proven of it is no less than what was found."""
        if problem.partition is not None:
            self.out[problem.partition] = bound_us

    def least(self, tried: Collection[Sizes], value_us: int, gap: float) -> NextPartition:
        """The partition of which the bounds say least, whatever it looks like; None: none wins."""
        if self.bounds is None:
            return NextPartition(None)
        bound_us, sizes = self.bounds.least({*tried, *self.out})
        if sizes is None or relative_gap(value_us, bound_us) <= gap:
            return NextPartition(None)
        return NextPartition(self.bounds.problem_on(sizes), _CHOOSING_S)

    def _next_shown(self, tried: Collection[Sizes]) -> Problem | None:
        for problem in self.search.all():
            if problem.partition is not None and problem.partition not in {*tried, *self.shown}:
                self.shown.add(problem.partition)
                return problem
        return None
