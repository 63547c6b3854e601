"""Search for the shortest initiation interval of several micro-batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from synth.solver.instance.instance import Instance
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.modulo.modulo_model import ModuloModel, num_ops
from synth.solver.tuning import INTERVAL_SEARCH


@dataclass
class IntervalSearch:
    """The shortest interval that can be found for a number of micro-batches.

    Attributes:
        size: micro-batches per interval.
        seconds: effort for all intervals together, in terms of `decide`.
        is_challenger: True if another size has been found, whose rate is to be beaten.
        is_thorough: True once brief tries are over.
        refuted_us: the longest interval that was refuted; 0 if none was.
        tried_us: every interval that was tried thoroughly.
    """

    instance: Instance
    size: int
    seconds: float
    seed: int
    should_stop: Callable[[], bool]
    is_challenger: bool
    spent_s: float = 0.0
    open_in_a_row: int = 0
    is_found: bool = False
    is_thorough: bool = False
    refuted_us: int = 0
    tried_us: set[int] = field(default_factory=set)

    @property
    def is_worth_a_try(self) -> bool:
        """True if the effort for the first interval suffices to find a schedule of this size."""
        return (
            INTERVAL_SEARCH.s_per_pair * self._num_ops**2
            <= INTERVAL_SEARCH.share_before_found * self.seconds
        )

    def run(self, least_us: int, high_us: int) -> Iterator[CyclicSchedule]:
        """Yield every schedule found between two intervals, each shorter than the one before.

        Intervals far too short are refuted at once, and those a little longer than need be are
        found soon, because they leave few schedules; long ones leave many and take longer. So the
        search begins near the least interval. Intervals slightly too short are neither found nor
        refuted for a long time, so an undecided interval is followed by a longer one, and tried
        thoroughly only later if there is time. The least interval itself, which may have no bubble,
        comes after longer ones. Last come the intervals just below the shortest found: one of them
        may be found although one or two longer ones stay undecided.
        """
        low_us, step = least_us - 1, INTERVAL_SEARCH.first_step  # the longest that was not found
        rise_us = (INTERVAL_SEARCH.most_rise - 1) * least_us
        while self.spent_s < self.seconds and not self.should_stop():
            gap_us = high_us - low_us
            is_narrow = gap_us <= max(1, INTERVAL_SEARCH.precision * high_us)
            is_done = is_narrow and (low_us >= least_us or gap_us <= 1)
            is_over = is_done or self.open_in_a_row >= self._most_open
            if is_over or self._is_soon_thorough:
                # Brief tries end here; undecided intervals lie between those refuted and found.
                floor_us = max(least_us - 1, self.refuted_us)
                is_open_below = floor_us < low_us and high_us - floor_us > 1
                is_of_use = is_open_below or not is_over
                if self.is_thorough or not is_of_use or not self._has_time:
                    break
                self.is_thorough, self.open_in_a_row = True, 0
                low_us, step, is_narrow = floor_us, INTERVAL_SEARCH.first_thorough_step, False
            step_us = 0 if is_narrow else min(step * (high_us - low_us), rise_us)
            if self.open_in_a_row and not self.is_found:
                step_us = min(step_us, INTERVAL_SEARCH.rise_after_undecided * low_us)
            interval_us = low_us + max(1, round(step_us))
            found = self._try(interval_us)
            if found is None:
                low_us, step = interval_us, self._next_step
                rise_us *= INTERVAL_SEARCH.most_rise
            else:
                high_us, step = (
                    interval_us,
                    max(INTERVAL_SEARCH.least_step, step - INTERVAL_SEARCH.step_decrease),
                )
                yield found
        if self.is_thorough and self.is_found:
            yield from self._run_below(least_us, high_us)

    def _run_below(self, least_us: int, high_us: int) -> Iterator[CyclicSchedule]:
        """Yield schedules of undecided intervals just below the shortest found."""
        interval_us, self.open_in_a_row = high_us, 0
        while (
            self._has_time
            and self.open_in_a_row < INTERVAL_SEARCH.most_undecided_below
            and not self.should_stop()
        ):
            interval_us -= max(1, round(INTERVAL_SEARCH.precision * interval_us))
            if interval_us <= max(least_us - 1, self.refuted_us):
                return
            if interval_us not in self.tried_us:
                found = self._try(interval_us)
                if found is not None:
                    yield found

    def _try(self, interval_us: int) -> CyclicSchedule | None:
        found = self._find(interval_us)
        if self.is_thorough:
            self.tried_us.add(interval_us)
        self.is_found |= found is not None
        return found

    @property
    def _next_step(self) -> float:
        """The step after an interval that was not found."""
        if self.open_in_a_row:
            return INTERVAL_SEARCH.step_after_undecided
        return (
            INTERVAL_SEARCH.later_step
            if self.is_found or self.is_challenger
            else INTERVAL_SEARCH.first_step
        )

    def _find(self, interval_us: int) -> CyclicSchedule | None:
        model, left_s = (
            ModuloModel(self.instance, self.size, interval_us),
            self.seconds - self.spent_s,
        )
        if self.is_thorough:
            each_s = min(left_s, INTERVAL_SEARCH.thorough_factor * self._thorough_s)
        else:
            share = (
                INTERVAL_SEARCH.share_after_found
                if self.is_found
                else INTERVAL_SEARCH.share_before_found
            )
            each_s = min(
                left_s, share * self.seconds, INTERVAL_SEARCH.most_s_per_pair * self._num_ops**2
            )
        # Another seed each time: of four, three find in seconds what the fourth does not.
        seed = self.seed + self.open_in_a_row
        found, spent_s, is_refuted = model.solve(
            each_s, seed, self.should_stop, is_thorough=self.is_thorough
        )
        self.spent_s += spent_s
        if is_refuted:
            self.refuted_us = max(self.refuted_us, interval_us)
        is_open = found is None and not is_refuted
        self.open_in_a_row = self.open_in_a_row + 1 if is_open else 0
        return found

    @property
    def _most_open(self) -> int:
        is_half_spent = 2 * self.spent_s > self.seconds
        is_one = (self.is_challenger or is_half_spent) and not self.is_found
        return 1 if is_one else INTERVAL_SEARCH.most_undecided

    @property
    def _is_soon_thorough(self) -> bool:
        """True if brief tries cost nearly as much, and intervals found and refuted are known."""
        brief_s = INTERVAL_SEARCH.most_s_per_pair * self._num_ops**2
        is_between = self.is_found and self.refuted_us > 0 and not self.is_thorough
        return is_between and 2 * brief_s > self._thorough_s and self._has_time

    @property
    def _has_time(self) -> bool:
        """True if the effort left suffices for a thorough try."""
        return self.seconds - self.spent_s >= self._thorough_s

    @property
    def _thorough_s(self) -> float:
        """The expected effort of a thorough try."""
        ops = self._num_ops
        return min(
            INTERVAL_SEARCH.thorough_s_per_op * ops, INTERVAL_SEARCH.thorough_s_per_pair * ops**2
        )

    @property
    def _num_ops(self) -> int:
        return num_ops(self.instance, self.size)
