"""The exact time and memory of one order on the costs of many cuts."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from synth.costs.costs import Costs, IntArray
from synth.objective import Objective
from synth.plan.published.critical_counts import critical_counts
from synth.plan.published.neighbours import Guide, Room, in_flight
from synth.schedule.arrays import OpArrays
from synth.schedule.lowering.lower import Lowered, lower_arrays
from synth.schedule.model import Schedule
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import DeadlockError, Timeline, simulate


class Score(NamedTuple):
    """Figures of a schedule, less is better: bytes above a limit at most, time, highest peak."""

    excess_bytes: int
    value_us: int
    peak_bytes: int

    @property
    def fits(self) -> bool:
        """True if no rank exceeds its limit."""
        return self.excess_bytes == 0


class Judge(NamedTuple):
    """The limits and the objective by which schedules are scored."""

    objective: Objective
    caps_bytes: Sequence[int] | None = None

    def score(self, lowered: Lowered, line: Timeline) -> Score:
        """Return the score of a simulated schedule."""
        peaks = peak_bytes(lowered)
        return Score(self.excess_bytes(peaks), self.objective.value_us(line), max(peaks))

    def excess_bytes(self, peaks: Sequence[int]) -> int:
        """Return the most by which a rank exceeds its limit."""
        return max(0, *self.above_bytes(peaks)) if self.caps_bytes is not None else 0

    def above_bytes(self, peaks: Sequence[int]) -> list[int]:
        """Return by rank the bytes above the limit, negative below it; without limits the peaks."""
        caps = self.caps_bytes or [0] * len(peaks)
        return [peak - cap for peak, cap in zip(peaks, caps, strict=True)]


class OrderScores:
    """Scores of an order whose ops exist and are complete, on any costs of its stages."""

    def __init__(self, schedule: Schedule, judge: Judge) -> None:
        self._arrays, self._judge = OpArrays.of(schedule), judge
        self.num_scored = 0

    @property
    def schedule(self) -> Schedule:
        """The schedule that has this order."""
        return self._arrays.schedule

    def score(self, costs: Costs, most_excess_bytes: int | None = None) -> Score | None:
        """Return the score on some costs.

        Args:
            most_excess_bytes: beyond which nothing is simulated.

        Returns:
            None if more memory is needed than that, or the order deadlocks on these costs.
        """
        self.num_scored += 1
        lowered = lower_arrays(self._arrays, costs)
        peaks = peak_bytes(lowered)
        excess = self._judge.excess_bytes(peaks)
        if most_excess_bytes is not None and excess > most_excess_bytes:
            return None
        try:
            line = simulate(lowered)
        except DeadlockError:
            return None
        return Score(excess, self._judge.objective.value_us(line), max(peaks))

    def above_bytes(self, costs: Costs) -> list[int]:
        """Return by rank the bytes above the limit on some costs; nothing is simulated."""
        return self._judge.above_bytes(peak_bytes(lower_arrays(self._arrays, costs)))

    def guide(self, costs: Costs) -> Guide:
        """Return what the schedule says about the neighbours of a cut on which it runs."""
        lowered = lower_arrays(self._arrays, costs)
        critical = critical_counts(simulate(lowered))
        if self._judge.caps_bytes is None:
            return Guide(critical)
        above_bytes = self._judge.above_bytes(peak_bytes(lowered))
        return Guide(critical, Room(above_bytes, self._in_flight))

    @cached_property
    def _in_flight(self) -> IntArray:
        return in_flight(self._arrays.schedule)
