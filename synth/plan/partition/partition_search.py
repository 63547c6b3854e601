"""Search for partitions under tight memory limits, where stages of equal work are not optimal.

Under a limit below 1F1B's memory, ranks stall on memory rather than on work. The first stages hold
every micro-batch longest, so a layer less there gains more than a layer more costs the last ones.

    even     6 6 6 6    rank 0 has room for two micro-batches, and the others wait for it
    found    5 5 7 7    it has room for three

Local search moves layers from a stage, or from a run of stages, to others. Neighbours with the
least closed-form bounds are judged first, by their best list schedule. With one stage per rank
there are bounds over all partitions (`bounds`): from a local optimum the search continues at the
partition of the least bound, until that bound is no less than the best value. The search is
deterministic.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice, repeat

from synth.costs.merged_recomputation import merged
from synth.plan.list_schedule_judge import ListScheduleJudge, RuleValue
from synth.plan.partition import bounds
from synth.plan.partition.bounds import PartitionBounds, with_partition
from synth.plan.partition.path_dp import Sizes
from synth.plan.partition.stage_cost_table import StageCostTable
from synth.plan.tuning import LIST_JUDGING, TIGHT_CAPS
from synth.profile import Profile
from synth.schedule.model import SMALLEST_BUFFERING, Schedule
from synth.solver.bounds import closed_form
from synth.solver.infeasibility import may_fit
from synth.solver.instance.instance import SPLIT, Instance
from synth.solver.instance.memory_models import relaxed_for_fusion, safe_memory
from synth.solver.options import SolveOptions
from synth.solver.order_pool import split_timing
from synth.solver.problem import Problem


class PartitionSearch:
    """A search for partitions: those judged so far, and their list schedules."""

    def __init__(
        self,
        profile: Profile,
        problem: Problem,
        effort_s: float,
        should_stop: Callable[[], bool] = lambda: False,
        recompute: Collection[int] = (),
        options: SolveOptions | None = None,
        order: Schedule | None = None,
        others: Sequence[Sizes] = (),
    ) -> None:
        """Judge nothing yet.

        Args:
            problem: on the partition to start from.
            effort_s: seconds for list scheduling in all, counted in ops.
            should_stop: asked often; can be replaced for `looks_good`.
            recompute: stages that recompute; their time and memory count as such.
            options: options and total time limit for proving bounds; None: closed forms only.
            order: a good schedule of any partition; partitions are judged in this order, too.
            others: more partitions to start from; the search goes on from the best one.
        """
        self.problem, self.should_stop = problem, should_stop
        self.judge = ListScheduleJudge(problem, effort_s)
        self.recompute, self.options = recompute, options or SolveOptions(0)
        self.table, self.rng = StageCostTable(profile), random.Random(0)
        self.num_micro_batches = self.judge.num_micro_batches
        self.judged: dict[Sizes, RuleValue | None] = {}
        self.bounds_us: dict[Sizes, int | None] = {}
        assert problem.partition is not None
        self.start, self.others = problem.partition, others
        self.order = order if self.num_micro_batches == problem.num_micro_batches else None
        self.bounds: PartitionBounds | None = None
        if bounds.applies(problem) and not recompute:
            sample = replace(problem, num_micro_batches=self.num_micro_batches)
            self.bounds = PartitionBounds(self.table, sample)

    def bounds_of_all(self) -> PartitionBounds | None:
        """Return the bounds over all partitions with all micro-batches, if there are any."""
        if self.bounds is None or self.num_micro_batches == self.problem.num_micro_batches:
            return self.bounds
        return PartitionBounds(self.table, self.problem)

    def run(self) -> bool:
        """Move layers while that helps; return False if the first partition has no schedule."""
        at, best = self.start, self._judge(self.start)
        others = [*self.others]
        if self.bounds is not None and best is not None:
            least = self.bounds.least_by_closed_forms(self._is_over)
            others += [] if least is None else [least]
        for sizes in others:
            if best is None or self._is_over():
                break
            found = self._judge(sizes, best) if sizes not in self.judged else None
            if found is not None and found.value_us < best.value_us:
                at, best = sizes, found
        while best is not None:
            better = self._leap(best, TIGHT_CAPS.leaps) or self._step(at, best) or self._leap(best)
            if better is None:
                break
            at, best = better, self.judged[better]
        return self.judged[self.start] is not None

    def _leap(self, best: RuleValue, most: int | None = None) -> Sizes | None:
        """Return the first improvement among the partitions of the least bounds."""
        for _ in islice(repeat(None), most):
            if (sizes := self._farther(best)) is None:
                break
            judged = self._judge(sizes, best)
            if judged is not None and judged.value_us < best.value_us:
                return sizes
        return None

    def _farther(self, best: RuleValue) -> Sizes | None:
        """Return the unjudged partition of the least bound; None if none can win."""
        if self.bounds is None or self._is_over():
            return None
        left_s = self.options.time_limit_s
        options = replace(self.options, time_limit_s=TIGHT_CAPS.leap_share_of_left * left_s)
        raised = self.bounds.raise_least(best.value_us, self.judged, options, self.should_stop)
        self.options = replace(options, time_limit_s=max(0.0, left_s - raised.spent_s))
        self.judge.effort_ops -= TIGHT_CAPS.bound_ops * self.problem.num_ranks
        return raised.least.sizes if raised.least.bound_us < best.value_us else None

    def best(self, most: int) -> list[Problem]:
        """Return the problem on the best partitions, best first.

        If several are returned, the first partition is among them.

        Args:
            most: the largest number to return, at least 1.
        """
        ranked = self._ranked()
        near_us = LIST_JUDGING.near_factor * ranked[0][0] if ranked else 0
        chosen = [sizes for value_us, sizes in ranked[:most] if value_us <= near_us]
        if not chosen or (self.start not in chosen and most > 1):
            chosen[most - 1 :] = [self.start]
        return [self._problem(sizes) for sizes in chosen]

    def all(self) -> Iterator[Problem]:
        """Yield the problem on all partitions with a schedule, best first."""
        return (self._problem(sizes) for _, sizes in self._ranked())

    def looks_good(self, sizes: Sizes) -> bool:
        """Return True if the list schedule of a partition is near the best of all."""
        ranked = self._ranked()
        best = self.judged[ranked[0][1]] if ranked else None
        judged = self.judged[sizes] if sizes in self.judged else self._judge(sizes, best)
        if judged is None or best is None:
            return judged is not None
        return judged.value_us <= LIST_JUDGING.near_factor * best.value_us

    @property
    def best_us(self) -> int | None:
        """Value of the best partition's list schedule; None if no partition fits."""
        return min(self._ranked(), default=(None, ()))[0]

    @property
    def judging_s(self) -> float:
        """Approximate seconds to judge one partition."""
        num_ops = len(SPLIT) * self.num_micro_batches * self.problem.costs.num_stages
        return LIST_JUDGING.rules * num_ops / LIST_JUDGING.ops_per_s

    def _ranked(self) -> list[tuple[int, Sizes]]:
        judged = ((found, sizes) for sizes, found in self.judged.items())
        return sorted((found.value_us, sizes) for found, sizes in judged if found is not None)

    def _step(self, at: Sizes, best: RuleValue) -> Sizes | None:
        """Return the first neighbour that is better; None if there is none, or no time."""
        ahead = []
        for sizes in self._neighbours(at):
            if self._is_over():
                return None
            bound_us = self._bound_us(sizes)
            if bound_us is not None and bound_us < best.value_us:
                ahead.append((bound_us, sizes))
        for _, sizes in sorted(pair for pair in ahead if pair[1] not in self.judged):
            if self._is_over():
                return None
            judged = self._judge(sizes, best)
            if judged is not None and judged.value_us < best.value_us:
                return sizes
        return None

    def _is_over(self) -> bool:
        return self.judge.effort_ops <= 0 or self.should_stop()

    def _neighbours(self, at: Sizes) -> list[Sizes]:
        """Return the neighbours of a partition; a random sample if there are too many."""
        every, most = list(dict.fromkeys(_moved(at))), TIGHT_CAPS.most_neighbours
        return every if len(every) <= most else self.rng.sample(every, most)

    def _problem(self, sizes: Sizes) -> Problem:
        if sizes == self.problem.partition:
            return self.problem
        return with_partition(self.table, self.problem, sizes)

    def _sample(self, sizes: Sizes) -> Problem:
        """Return the problem for judging a partition: few micro-batches, and R as a part of B."""
        problem = self._problem(sizes)
        costs = merged(problem.costs, self.recompute)
        return replace(problem, costs=costs, num_micro_batches=self.num_micro_batches)

    def _bound_us(self, sizes: Sizes) -> int | None:
        """Return the closed-form bound; None if the partition cannot fit."""
        if self.bounds is not None:
            return self.bounds.bound_us(sizes)
        if sizes not in self.bounds_us:
            problem = self._sample(sizes)
            self.judge.effort_ops -= TIGHT_CAPS.bound_ops * problem.num_ranks
            self.bounds_us[sizes] = (
                closed_form.work_bound_us(relaxed_for_fusion(problem), problem.objective)
                if may_fit(problem)
                else None
            )
        return self.bounds_us[sizes]

    def _judge(self, sizes: Sizes, best: RuleValue | None = None) -> RuleValue | None:
        """Judge a partition by the given order, or by the best list schedule if better.

        Where ranks hold several stages, list schedules tell little of a partition that is better in
        the given order, and take longer.
        """
        problem, found = self._sample(sizes), None
        if may_fit(problem):
            found = self._in_order(problem)
            is_better = found is not None and best is not None and found.value_us < best.value_us
            if not (is_better and problem.placement.holds_several):
                listed = self._scheduled(problem, safe_memory(problem, SMALLEST_BUFFERING), best)
                found = min((one for one in (found, listed) if one is not None), default=None)
        self.judged[sizes] = found
        return found

    def _in_order(self, problem: Problem) -> RuleValue | None:
        """Judge a partition in the given order, if that fits; it counts as the first rule."""
        if self.order is None:
            return None
        instance = safe_memory(problem, self.order.buffering)
        self.judge.effort_ops -= instance.num_ops
        timing = split_timing(self.order.programs, instance)
        if timing is None:
            return None
        return RuleValue(timing.value_us(instance, problem.objective), 0)

    def _scheduled(
        self, problem: Problem, instance: Instance, best: RuleValue | None
    ) -> RuleValue | None:
        holds_several = len(instance) > instance.num_ranks
        found = self.judge.values(
            instance,
            problem.objective,
            2 * LIST_JUDGING.rules if holds_several else LIST_JUDGING.rules,
            0 if best is None else best.rule,
            None if best is None else best.value_us,
            self.should_stop,
        )
        return min(found, key=lambda one: one.value_us, default=None)


def _moved(sizes: Sizes) -> Iterator[Sizes]:
    """Yield partitions with a layer less in each of a run of stages and more in another run."""
    count = len(sizes)
    for length in (length for length in (1, 2, 4, 8, 16) if 2 * length <= count):
        starts = range(count - length + 1)
        for less in starts:
            if min(sizes[less : less + length]) == 1:
                continue
            for more in starts:
                if abs(less - more) < length:
                    continue
                moved = list(sizes)
                for offset in range(length):
                    moved[less + offset] -= 1
                    moved[more + offset] += 1
                yield tuple(moved)
