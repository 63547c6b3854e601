"""Partitions for tight caps, where stages of equal work are not what serves best.

Under a cap below what 1F1B needs, ranks wait for room and not for work: the first stages hold every
micro-batch longest, so there a layer less is worth more than a layer more costs the last ones.

    even     6 6 6 6    rank 0 has room for two micro-batches, and the others wait for it
    found    5 5 7 7    it has room for three

Local search: layers move from a stage, or from a run of them, to others. Those of which the closed
bounds say least are looked at first, and judged by their best list schedule. No proof, but the same
input gives the same partitions.
"""

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import accumulate, islice
from typing import NamedTuple

from synth.plan.recompute import merged
from synth.plan.stage_table import StageTable
from synth.profile import Profile
from synth.schedule.model import Buffering
from synth.solve import bounds, construct
from synth.solve.feasible import needed_bytes
from synth.solve.memory_views import cautious, relaxed_for_fusion
from synth.solve.polish import BUFFERINGS
from synth.solve.problem import Problem
from synth.solve.view import View

_Sizes = tuple[int, ...]

# Priority rules tried on each partition, twice as many where ranks hold several stages: first the
# one that was best before, and no more where what is found is so many times as long as the best.
_RULES = 12
_FAR = 1.15

# Those that are so many times as long as the best at most are worth a trial.
_NEAR = 1.05

# Partitions are judged by so many micro-batches for each rank, or as many as there are.
_MICRO_BATCHES_PER_RANK = 3

# Neighbours whose bounds are looked at in one step; a bound is as much effort as so many ops placed
# for each rank.
_MOST_NEIGHBOURS = 400
_BOUND_OPS = 10


class _Judged(NamedTuple):
    """What list scheduling makes of a partition, with the rule that did it; none: nothing fits."""

    value_us: int
    rule: int


class CutSearch:
    """The partitions that were looked at, and what they are worth."""

    def __init__(
        self,
        profile: Profile,
        problem: Problem,
        effort_ops: int,
        should_stop: Callable[[], bool] = lambda: False,
        recompute: Collection[int] = (),
    ) -> None:
        """Nothing is looked at yet.

        Args:
            problem: on the partition to start from.
            effort_ops: ops to be placed by list scheduling, in all.
            should_stop: asked all the time.
            recompute: stages that recompute, whose time and memory count as they are then.
        """
        self.problem, self.effort_ops, self.should_stop = problem, effort_ops, should_stop
        self.recompute = recompute
        self.table, self.rng = StageTable(profile), random.Random(0)
        count = max(problem.num_replicas, _MICRO_BATCHES_PER_RANK * problem.num_ranks)
        self.num_micro_batches = min(problem.num_micro_batches, count)
        self.judged: dict[_Sizes, _Judged | None] = {}
        self.bounds_us: dict[_Sizes, int | None] = {}
        assert problem.partition is not None
        self.start = problem.partition

    def run(self) -> bool:
        """Move layers as long as that helps; False: there is no schedule to begin with."""
        at, best = self.start, self._judge(self.start)
        while best is not None and (step := self._step(at, best)) is not None:
            at, best = step, self.judged[step]
        return best is not None

    def best(self, most: int) -> list[Problem]:
        """The problem on those that look best, best first.

        Where there may be several, the one to start from is the last of them, if it is not one.

        Args:
            most: how many, at least 1.
        """
        ranked = self._ranked()
        chosen = [sizes for value_us, sizes in ranked[:most] if value_us <= _NEAR * ranked[0][0]]
        if not chosen or (self.start not in chosen and most > 1):
            chosen[most - 1 :] = [self.start]
        return [self._problem(sizes) for sizes in chosen]

    def all(self) -> Iterator[Problem]:
        """The problem on all that something fits in, best first."""
        return (self._problem(sizes) for _, sizes in self._ranked())

    def _ranked(self) -> list[tuple[int, _Sizes]]:
        judged = ((found, sizes) for sizes, found in self.judged.items())
        return sorted((found.value_us, sizes) for found, sizes in judged if found is not None)

    def _step(self, at: _Sizes, best: _Judged) -> _Sizes | None:
        """The first neighbour that is better; None: there is none, or no more time."""
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
        return self.effort_ops <= 0 or self.should_stop()

    def _neighbours(self, at: _Sizes) -> list[_Sizes]:
        """Those that moves lead to, not more than there is time for, drawn by chance then."""
        every = list(dict.fromkeys(_moved(at)))
        return every if len(every) <= _MOST_NEIGHBOURS else self.rng.sample(every, _MOST_NEIGHBOURS)

    def _problem(self, sizes: _Sizes) -> Problem:
        if sizes == self.problem.partition:
            return self.problem
        costs = self.table.costs((0, *accumulate(sizes)))
        return replace(self.problem, costs=costs, partition=sizes, partition_is_best=False)

    def _sample(self, sizes: _Sizes) -> Problem:
        """The problem as partitions are judged by: few micro-batches, and R as a part of B."""
        problem = self._problem(sizes)
        costs = merged(problem.costs, self.recompute)
        return replace(problem, costs=costs, num_micro_batches=self.num_micro_batches)

    def _bound_us(self, sizes: _Sizes) -> int | None:
        """What the closed forms say; None where nothing fits."""
        if sizes not in self.bounds_us:
            problem = self._sample(sizes)
            self.effort_ops -= _BOUND_OPS * problem.num_ranks
            self.bounds_us[sizes] = (
                bounds.work_bound_us(relaxed_for_fusion(problem), problem.objective)
                if _may_fit(problem)
                else None
            )
        return self.bounds_us[sizes]

    def _judge(self, sizes: _Sizes, best: _Judged | None = None) -> _Judged | None:
        """The best of some list schedules, with the usual boundary buffers or with none."""
        problem, found = self._sample(sizes), None
        if _may_fit(problem):
            for buffering in (BUFFERINGS[0], Buffering(0, 0)):
                found = found or self._scheduled(problem, cautious(problem, buffering), best)
        self.judged[sizes] = found
        return found

    def _scheduled(self, problem: Problem, view: View, best: _Judged | None) -> _Judged | None:
        builder = construct.Builder(view, problem.objective)
        count = _RULES if len(view) == view.num_ranks else 2 * _RULES
        rules = list(islice(construct.variants(view), count))
        order = list(range(len(rules)))
        if best is not None:
            order.insert(0, order.pop(best.rule))
        found: _Judged | None = None
        for rule in order:
            self.effort_ops -= view.num_ops
            draft = builder.build(rules[rule])
            if draft is not None and (found is None or draft.value_us < found.value_us):
                found = _Judged(draft.value_us, rule)
            is_far = found and best and found.value_us > _FAR * best.value_us
            if is_far or (found and self.should_stop()):
                break
        return found


def _may_fit(problem: Problem) -> bool:
    """Whether every rank has room for one micro-batch at a time."""
    caps = problem.caps_bytes
    return caps is None or all(n <= c for n, c in zip(needed_bytes(problem), caps, strict=True))


def _moved(sizes: _Sizes) -> Iterator[_Sizes]:
    """A layer less in each of a run of stages, and one more in each of another run as long."""
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
