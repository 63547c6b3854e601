"""Bounds from the least idle time of each rank while it fills and while it drains."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from synth.objective import Objective, Spans
from synth.solve.idle import Idle, Stretch, base_length_us
from synth.solve.problem import SolveOptions
from synth.solve.run_cpsat import Outcome, run
from synth.solve.view import View

# How many ranks are tried as the second one.
_PARTNERS = 4

# What more ranks add to a rank's bound differs by more than this.
_NEARLY = 0.98

# By how much a stretch grows at a time.
_LONGER = 1.5

# What one model may take of the time that is left.
_SHARE = 0.25
_FIRST_SHARE = 0.5


class End(NamedTuple):
    """The beginning or the end of a rank."""

    rank: int
    is_opening: bool


@dataclass(frozen=True)
class _Growth:
    """How large a part of an end is modelled: by turns of more ranks, and of a longer stretch.

    Attributes:
        further: ranks that can still be added.
    """

    end: End
    ranks: tuple[int, ...]
    further: tuple[int, ...] = ()
    stretched: float = 1


@dataclass
class IdleBounds:
    """A rank takes its work, and what it must idle at the beginning and at the end.

    The two stretches never overlap: neither is longer than half of the rank's work.

    Attributes:
        work: the closed forms' bounds.
        value_us: of a known schedule in the model's terms; nothing above it is of interest.
        should_stop: asked all the time.
        least_us: the idle time proven so far.
    """

    view: View
    objective: Objective
    options: SolveOptions
    work: Spans
    value_us: int
    should_stop: Callable[[], bool]
    least_us: dict[End, int] = field(default_factory=dict)

    @property
    def _is_period(self) -> bool:
        """Whether ranks are judged by their own time; no makespan is below that either."""
        return self.objective.periods > 0

    @property
    def bound_us(self) -> int:
        """What has been proven so far."""
        rank_us = max(self._rank_us(rank) for rank in range(self.view.num_ranks))
        spans = Spans.most([self.work, Spans(rank_us, rank_us if self._is_period else 0)])
        return min(self.value_us, self.objective.value_us(spans))

    def _rank_us(self, rank: int) -> int:
        idle_us = sum(self.least_us.get(End(rank, opens), 0) for opens in (True, False))
        return self._work_us(rank) + idle_us

    def _work_us(self, rank: int) -> int:
        held = (self.view[chunk] for chunk in self.view.held[rank])
        work_us = sum(chunk.num_micro_batches * chunk.work_us for chunk in held)
        return work_us + self.view.step_us(rank)

    def one_by_one(self, limit_s: float) -> Iterator[int]:
        """Bounds from each rank alone, at its beginning, where it is found quickly.

        Args:
            limit_s: for all of them; seconds of the clock, or deterministic ones.
        """
        left_s = limit_s
        for rank in range(self.view.num_ranks):
            # The first rank waits longest for its first B.
            share = _FIRST_SHARE if rank == 0 else 1 / (self.view.num_ranks - rank)
            left_s -= self._solve(_Growth(End(rank, True), (rank,)), share * left_s).spent_s
            yield self.bound_us
            if self.should_stop():
                return

    def together(self, limit_s: float) -> Iterator[int]:
        """Bounds of the rank that is bounded best: by more ranks and over longer stretches.

        The beginning, which is found more quickly, says which ranks are worth it.
        """
        rank, left_s = self._most_promising(), limit_s
        queue = deque(_Growth(End(rank, True), (rank, other)) for other in self._partners(rank))
        pairs: dict[_Growth, int] = dict.fromkeys(queue, 0)
        while queue and left_s > 0 and not self.should_stop():
            growth = queue.popleft()
            outcome = self._solve(growth, _SHARE * left_s)
            left_s -= outcome.spent_s
            yield self.bound_us
            if growth in pairs:
                pairs[growth] = outcome.bound_us
                queue.extend(self._after(pairs) if not queue else ())
            elif outcome.optimal:
                queue.extend(part for part in self._larger(growth) if part not in queue)

    def _after(self, pairs: Mapping[_Growth, int]) -> Iterator[_Growth]:
        """What to try when all pairs have been at the beginning: the best one at the end first."""
        best, *others = sorted(pairs, key=lambda growth: -pairs[growth])
        best = replace(best, further=tuple(growth.ranks[1] for growth in others))
        yield replace(best, end=End(best.end.rank, False))
        yield from self._larger(best)

    def _larger(self, growth: _Growth) -> Iterator[_Growth]:
        """What to try next where this was solved."""
        longer = replace(growth, stretched=_LONGER * growth.stretched)
        if self._length_us(longer) > self._length_us(growth):
            yield longer
        if growth.further:
            ranks = (*growth.ranks, growth.further[0])
            yield replace(growth, ranks=ranks, further=growth.further[1:])

    def _most_promising(self) -> int:
        """Of the ranks that are bounded nearly best alone, that with the longest round trip."""
        ranks = range(self.view.num_ranks)
        enough_us = _NEARLY * max(self._rank_us(rank) for rank in ranks)
        nearly = [rank for rank in ranks if self._rank_us(rank) >= enough_us]
        return max(nearly, key=lambda rank: base_length_us(self.view, rank))

    def _partners(self, rank: int) -> list[int]:
        """Other ranks, far apart, farthest first."""
        others = [other for other in range(self.view.num_ranks) if other != rank]
        size = min(len(others), _PARTNERS)
        some = [others[(2 * i + 1) * len(others) // (2 * size)] for i in range(size)]
        return sorted(some, key=lambda other: -abs(other - rank))

    def _length_us(self, growth: _Growth) -> int:
        rank = growth.end.rank
        length_us = round(growth.stretched * base_length_us(self.view, rank))
        if not self._is_period:
            length_us += min(self.view.head_us[chunk] for chunk in self.view.held[rank])
        return min(length_us, self._work_us(rank) // 2)

    def _solve(self, growth: _Growth, limit_s: float) -> Outcome:
        end, length_us = growth.end, self._length_us(growth)
        stretch = Stretch(end.rank, length_us, end.is_opening, self._is_period)
        longest_us = self.view.longest_us(self.objective, self.value_us)
        model = Idle(self.view, stretch, growth.ranks, longest_us)
        outcome = run(model, self.options, limit_s, should_stop=self.should_stop)
        self.least_us[end] = max(self.least_us.get(end, 0), outcome.bound_us)
        return outcome
