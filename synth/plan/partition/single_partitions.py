"""Lower bounds of single partitions, by models of several ranks.

One rank alone knows of the others only how long their layers take (`bounds`), and a bound for all
partitions needs no more. Models of several ranks also let F's and B's pass each other on the ranks
between them one at a time (`cpsat.passing_pairs`), which depends on the whole partition and proves
more. Where single ranks leave few partitions open, these are bounded one after the other.

A model has the rank that proves most alone, and others that prove much: they refute most together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from synth.plan.partition.bounds import PartitionBounds
from synth.plan.partition.path_dp import Sizes
from synth.plan.tuning import PARTITION_BOUNDS
from synth.schedule.files.certificate import ProvenBound
from synth.solver.bounds.bound import Reference
from synth.solver.bounds.destructive import Ranks
from synth.solver.bounds.rank_subsets import RankSubsets
from synth.solver.instance.memory_models import relaxed_for_fusion
from synth.solver.options import SolveOptions


@dataclass
class SinglePartitions:
    """The bounds of some partitions, each with its proof.

    Attributes:
        bounds: by single ranks, of all partitions.
        proven: the best bounds of some of them, also by closed forms.
    """

    bounds: PartitionBounds
    proven: dict[Sizes, ProvenBound] = field(default_factory=dict)
    _subsets: dict[Sizes, RankSubsets] = field(default_factory=dict)
    _efforts_s: dict[Sizes, float] = field(default_factory=dict)

    def bound_us(self, sizes: Sizes) -> int:
        """Return the best bound of a partition, of its own or by single ranks."""
        own = self.proven.get(sizes)
        return max(self.bounds.paths.bound_us(sizes), 0 if own is None else own.bound_us)

    def note(self, sizes: Sizes, proven: ProvenBound) -> None:
        """Keep a bound if it is the best one of its partition."""
        if sizes not in self.proven or self.proven[sizes].bound_us < proven.bound_us:
            self.proven[sizes] = proven

    def raise_one(
        self,
        sizes: Sizes,
        value_us: int,
        options: SolveOptions,
        left_s: float,
        should_stop: Callable[[], bool],
    ) -> float:
        """Ask models of several ranks of a partition whether they keep values.

        Each time it is asked for, a partition gets twice the time of the last one.

        Args:
            value_us: the best value known; no bound is looked for above it.
            options: the time limit is for all partitions.
            left_s: what is left of it.

        Returns:
            The time it was given, all of which counts.
        """
        first_s = PARTITION_BOUNDS.first_share_of_several * options.time_limit_s
        limit_s = min(left_s, 2 * self._efforts_s.get(sizes, first_s / 2))
        self._efforts_s[sizes] = limit_s
        subsets = self._subsets.get(sizes)
        if subsets is None:
            problem = self.bounds.problem_on(sizes)
            subsets = self._subsets[sizes] = RankSubsets(
                relaxed_for_fusion(problem),
                problem.objective,
                options,
                lambda: Reference(value_us, None),
                should_stop,
            )
        # Those of this call, not of the first one.
        subsets.reference, subsets.should_stop = lambda: Reference(value_us, None), should_stop
        subsets.proven_us = max(subsets.proven_us, self.bound_us(sizes))
        for proven in subsets.destructive(self._sets(sizes), limit_s):
            self.note(sizes, proven)
        return limit_s

    def _sets(self, sizes: Sizes) -> list[Ranks]:
        """Return the sets of ranks to model, those that may prove most first."""
        us = self.bounds.bounds_of_ranks(sizes)
        first, *others = sorted(range(len(us)), key=us.__getitem__, reverse=True)
        apart = [rank for rank in others if abs(rank - first) > 1] or others
        chosen = apart[: PARTITION_BOUNDS.second_ranks]
        sets = [(first, *chosen[:2]), *((first, rank) for rank in chosen)]
        return list(dict.fromkeys(tuple(sorted(ranks)) for ranks in sets))
