"""Queue of partitions to try, and a bound on the untried ones."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.plan.partition.bounds import PartitionBounds
from synth.plan.partition.partition_search import PartitionSearch
from synth.plan.partition.path_dp import Least, Sizes
from synth.plan.partition.single_partitions import SinglePartitions
from synth.plan.tuning import PARTITION_QUEUE
from synth.schedule.files.certificate import ProvenBound
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
        shown: partitions of local search that were returned.
        single: bounds of partitions of their own, if there are bounds over all.
    """

    search: PartitionSearch
    bounds: PartitionBounds | None
    poor: set[Sizes] = field(default_factory=set)
    shown: set[Sizes] = field(default_factory=set)
    single: SinglePartitions | None = field(init=False)

    def __post_init__(self) -> None:
        """Begin without bounds of single partitions."""
        self.single = None if self.bounds is None else SinglePartitions(self.bounds)

    def bound_us(self, sizes: Sizes) -> int:
        """Return the lower bound of a partition by runs of layers; 0 without one."""
        return 0 if self.bounds is None else self.bounds.bound_us(sizes) or 0

    def proven(self, sizes: Sizes) -> ProvenBound | None:
        """Return the bound of a partition of its own; None without one."""
        return None if self.single is None else self.single.proven.get(sizes)

    def least_us(self, tried: Collection[Sizes]) -> int | None:
        """Return the lower bound over all untried partitions; None without bounds over all."""
        return None if self.bounds is None else self._least(tried).bound_us

    def _least(self, without: Collection[Sizes], path: Least | None = None) -> Least:
        """Return the least bound of a partition, some left out, and the partition.

        Args:
            path: of those that have no bound of their own; None: found here.
        """
        assert self.bounds is not None and self.single is not None
        proven = self.single.proven
        known = (Least(self.single.bound_us(one), one) for one in proven if one not in without)
        least = path or self.bounds.least({*without, *proven})
        return min([least, *known], key=_bound_us)

    def raise_bound(
        self,
        tried: Mapping[Sizes, ProvenBound],
        value_us: int,
        options: SolveOptions,
        should_stop: Callable[[], bool],
    ) -> float:
        """Raise the bound over all partitions towards a value; return what that took.

        Single ranks come first. They leave few partitions open, each of which is bounded alone.

        Args:
            tried: the bounds of partitions that have trials.
        """
        if self.bounds is None or self.single is None:
            return 0.0
        for sizes, proven in tried.items():
            if proven.bound_us > self.bound_us(sizes):
                self.single.note(sizes, proven)
        spent_s = 0.0
        while (left_s := options.time_limit_s - spent_s) > 0 and not should_stop():
            left = replace(options, time_limit_s=left_s)
            raised = self.bounds.raise_least(value_us, self.single.proven, left, should_stop)
            spent_s += raised.spent_s
            least, left_s = self._least((), raised.least), options.time_limit_s - spent_s
            is_enough = relative_gap(value_us, min(value_us, least.bound_us)) <= options.gap
            if least.sizes is None or is_enough or left_s <= 0 or should_stop():
                break
            spent_s += self.single.raise_one(least.sizes, value_us, options, left_s, should_stop)
        return spent_s

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
        assert self.single is not None
        while not should_stop() and spent_s < options.time_limit_s:
            without = {*tried, *self.poor}
            raised = self.bounds.raise_least(
                value_us, {*without, *self.single.proven}, part, should_stop
            )
            spent_s += raised.spent_s + self.search.judging_s
            bound_us, sizes = self._least(without, raised.least)
            if sizes is None or relative_gap(value_us, bound_us) <= options.gap:
                break
            if self.search.looks_good(sizes):
                return NextPartition(self.bounds.problem_on(sizes), spent_s)
            self.poor.add(sizes)
        return NextPartition(None, spent_s)

    def prune(self, problem: Problem, bound_us: int) -> None:
        """Note the closed-form bound of a partition, which proves that it cannot win."""
        if problem.partition is not None and self.single is not None:
            self.single.note(problem.partition, ProvenBound.by_closed_forms(bound_us))

    def least(self, tried: Collection[Sizes], value_us: int, gap: float) -> NextPartition:
        """Return the partition of the least bound; its problem is None if none can win."""
        if self.bounds is None:
            return NextPartition(None)
        bound_us, sizes = self._least(tried)
        if sizes is None or relative_gap(value_us, bound_us) <= gap:
            return NextPartition(None)
        return NextPartition(self.bounds.problem_on(sizes), PARTITION_QUEUE.choice_s)

    def _next_shown(self, tried: Collection[Sizes]) -> Problem | None:
        for problem in self.search.all():
            if problem.partition is not None and problem.partition not in {*tried, *self.shown}:
                self.shown.add(problem.partition)
                return problem
        return None


def _bound_us(least: Least) -> int:
    return least.bound_us
