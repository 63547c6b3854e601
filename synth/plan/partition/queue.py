"""Queue of partitions to try, and a bound on the untried ones."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.plan.partition.bounds import PartitionBounds
from synth.plan.partition.partition_search import PartitionSearch
from synth.plan.partition.path_dp import Sizes
from synth.plan.tuning import PARTITION_QUEUE
from synth.search.outcome import relative_gap
from synth.solver.options import SolveOptions
from synth.solver.problem import Problem


class NextPartition(NamedTuple):
    """The problem on one more partition (None: there is none), and the seconds spent to find it."""

    problem: Problem | None
    spent_s: float = 0.0


@dataclass
class PartitionQueue:
    """The partitions of one placement.

    With bounds over all partitions (`bounds`), the next one is that of the least bound; those with
    a good list schedule come first. Otherwise the next one is from the local search.

    Attributes:
        bounds: over all partitions; None: there are none.
        poor: partitions whose list schedule was far from the best.
        pruned: the lower bounds of partitions that cannot win.
        shown: partitions of local search that were returned.
    """

    search: PartitionSearch
    bounds: PartitionBounds | None
    poor: set[Sizes] = field(default_factory=set)
    pruned: dict[Sizes, int] = field(default_factory=dict)
    shown: set[Sizes] = field(default_factory=set)

    def bound_us(self, sizes: Sizes) -> int:
        """Return the lower bound of a partition; 0 without one."""
        return 0 if self.bounds is None else self.bounds.bound_us(sizes) or 0

    def least_us(self, tried: Collection[Sizes]) -> int | None:
        """Return the lower bound over all untried partitions; None without bounds over all."""
        if self.bounds is None:
            return None
        return min((self.bounds.least({*tried, *self.pruned}).bound_us, *self.pruned.values()))

    def raise_bound(
        self,
        tried: Collection[Sizes],
        value_us: int,
        options: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> float:
        """Raise the bound over all untried partitions towards a value; return what that took."""
        if self.bounds is None:
            return 0.0
        without = {*tried, *self.pruned}
        return self.bounds.raise_least(value_us, without, options, should_stop).spent_s

    def next(
        self,
        tried: Collection[Sizes],
        value_us: int | None,
        options: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> NextPartition:
        """Return a partition that may beat a value and that has a good list schedule.

        Args:
            tried: partitions to skip.
            value_us: the best one found.
            options: the time limit is for choosing the partition.
        """
        if self.bounds is None or value_us is None:
            return NextPartition(self._next_shown(tried), PARTITION_QUEUE.choice_s)
        part = replace(options, time_limit_s=PARTITION_QUEUE.share * options.time_limit_s)
        spent_s = 0.0
        self.search.should_stop = should_stop
        for known in tried:
            spent_s += self.bounds.raise_one(known, value_us, part, should_stop)
        while not should_stop() and spent_s < options.time_limit_s:
            without = {*tried, *self.pruned, *self.poor}
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

    def prune(self, problem: Problem, bound_us: int) -> None:
        """Never return a partition again: its lower bound proves that it cannot win."""
        if problem.partition is not None:
            self.pruned[problem.partition] = bound_us

    def least(self, tried: Collection[Sizes], value_us: int, gap: float) -> NextPartition:
        """Return the partition of the least bound; its problem is None if none can win."""
        if self.bounds is None:
            return NextPartition(None)
        bound_us, sizes = self.bounds.least({*tried, *self.pruned})
        if sizes is None or relative_gap(value_us, bound_us) <= gap:
            return NextPartition(None)
        return NextPartition(self.bounds.problem_on(sizes), PARTITION_QUEUE.choice_s)

    def _next_shown(self, tried: Collection[Sizes]) -> Problem | None:
        for problem in self.search.all():
            if problem.partition is not None and problem.partition not in {*tried, *self.shown}:
                self.shown.add(problem.partition)
                return problem
        return None
