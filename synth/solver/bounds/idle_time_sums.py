"""The least time of a rank: its work, and its least idle time in warm-up and drain."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from synth.schedule.files.certificate import IdleTime
from synth.solver.bounds.idle_time_model import End, IdleTimes, LeastIdle, Stretch
from synth.solver.instance.instance import Instance


class _Stretches(NamedTuple):
    """A least time of a rank, from the idle time in stretches of its warm-up and its drain."""

    proven_us: int
    opening_us: int
    closing_us: int


@dataclass(frozen=True)
class IdleTimeSums:
    """Least times of ranks from the idle times that are proven so far.

    The two stretches of a sum must not overlap: together they are no longer than what is proven
    already.

    Attributes:
        is_period: True for the ranks' own times, see `Stretch`.
        least_us: proven idle times by the length of the stretch; more may be added.
    """

    instance: Instance
    is_period: bool
    least_us: IdleTimes = field(default_factory=dict)

    def add(self, end: End, length_us: int, proven: LeastIdle) -> None:
        """Add the proven idle time of a stretch, if it is more than is known of it."""
        known = self.least_us.setdefault(end, {})
        known[length_us] = max(known.get(length_us, proven), proven)

    def work_us(self, rank: int) -> int:
        """The time of a rank without idle time."""
        held = (self.instance[copy] for copy in self.instance.held[rank])
        work_us = sum(copy.num_micro_batches * copy.work_us for copy in held)
        return work_us + self.instance.step_us(rank)

    def rank_us(self, rank: int) -> int:
        """The least time of a rank."""
        return self._stretches(rank)[-1].proven_us

    def longest_rank(self) -> int:
        """The rank with the largest least time."""
        return max(range(self.instance.num_ranks), key=self.rank_us)

    def lemmas(self, rank: int) -> Iterator[IdleTime]:
        """Yield the idle times that the rank's least time needs, shorter stretches first."""
        steps = self._stretches(rank)
        # A step needs an earlier proof only of the sum of its two stretches.
        needed: list[_Stretches] = []
        place = len(steps) - 1
        while place > 0:
            step = steps[place]
            needed.insert(0, step)
            lengths_us = step.opening_us + step.closing_us
            place = next(p for p, one in enumerate(steps) if one.proven_us >= lengths_us)
        said: set[tuple[End, int]] = set()
        for step in needed:
            for end, length_us in (
                (End(rank, True), step.opening_us),
                (End(rank, False), step.closing_us),
            ):
                if length_us and (end, length_us) not in said:
                    said.add((end, length_us))
                    yield self._lemma(end, length_us)

    def _stretches(self, rank: int) -> list[_Stretches]:
        """Return ever longer pairs of stretches, each within the time that the last one proves."""
        opening, closing = (
            {0: LeastIdle(0), **self.least_us.get(End(rank, is_opening), {})}
            for is_opening in (True, False)
        )
        work_us = self.work_us(rank)
        steps = [_Stretches(work_us, 0, 0)]
        while True:
            proven_us = steps[-1].proven_us
            longer = max(
                _Stretches(work_us + opening[first].least_us + closing[last].least_us, first, last)
                for first, last in product(opening, closing)
                if first + last <= proven_us
            )
            if longer.proven_us <= proven_us:
                return steps
            steps.append(longer)

    def _lemma(self, end: End, length_us: int) -> IdleTime:
        least_idle = self.least_us[end][length_us]
        stretch = Stretch(end.rank, length_us, end.is_opening, self.is_period)
        return IdleTime(
            is_opening=end.is_opening,
            length_us=length_us,
            least_us=least_idle.least_us,
            ranks=least_idle.ranks,
            num_micro_batches=stretch.num_micro_batches(self.instance),
        )
