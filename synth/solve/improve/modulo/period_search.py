"""The shortest period for which a round of some size can be found, by trying."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from synth.solve.improve.modulo.model import Round, RoundModel, num_ops
from synth.solve.instance.instance import Instance

# The search ends when what is left is such a share of the period.
_PRECISION = 0.001

# Of the effort, the most for one period, until one is found and then: what is neither found nor
# refuted soon is neither late.
_SHARE_OF_FIRST = 0.6
_SHARE_OF_ONE = 0.35

# After so many periods in a row that were neither, a size is given up; at once where none is found
# and either another size has found one or half of the effort is spent. Just below the shortest
# found, so many.
_MOST_OPEN = 2
_MOST_OPEN_BELOW = 3

# What it takes to find a round of some ops, about, in terms of `decide`: so much for each pair. A
# period is tried for little more than that, and then thoroughly, if there is time for it: that
# takes up to four times as long where it is easy, and decides most of what else stays open. Where
# ops are many, that grows with them rather than with their pairs. It may take so many times that.
_PAIR_S = 9e-6
_MOST_PAIR_S = 1.5e-5
_THOROUGH_PAIR_S = 3.5e-5
_THOROUGH_OP_S = 0.015
_MOST_TO_FIND = 1.15

# Which period is tried next, from the longest not found on, as a share of the way to the shortest
# found: at first, and when the last one was refuted and none is found yet; when it was refuted
# and one is; when it was neither found nor refuted; when it was found, so much less than the last
# one, but this at least. And thoroughly, where most that are a little too long are found: at first.
_FIRST_WAY = 0.25
_WAY_BETWEEN = 0.5
_FIRST_THOROUGH_WAY = 0.65
_WAY_AFTER_OPEN = 0.6
_LESS_WAY = 0.2
_LEAST_WAY = 0.3

# Until one is found, none is tried that is so many times as long as the longest not found: those
# that are far too long leave too many ways. And where what is too short ends is sharp, so what is
# a little longer than one that was neither found nor refuted is tried next.
_MOST_RISE = 1.25
_RISE_AFTER_OPEN = 0.02


@dataclass
class PeriodSearch:
    """The shortest period of a round's size that can be found.

    Attributes:
        seconds: effort for all periods together, in terms of `decide`.
        tried_us: every period that was tried thoroughly.
        refuted_us: the longest period that was refuted; 0 if none was.
        is_rival: whether only what is shorter than a round of another size is of use.
        is_thorough: whether brief tries are over.
    """

    instance: Instance
    size: int
    seconds: float
    seed: int
    should_stop: Callable[[], bool]
    is_rival: bool
    spent_s: float = 0.0
    open_in_a_row: int = 0
    is_found: bool = False
    is_thorough: bool = False
    refuted_us: int = 0
    tried_us: set[int] = field(default_factory=set)

    @property
    def is_worth_a_try(self) -> bool:
        """Whether the first one is long enough to find a round of so many ops."""
        return _PAIR_S * self._num_ops**2 <= _SHARE_OF_FIRST * self.seconds

    def run(self, least_us: int, high_us: int) -> Iterator[Round]:
        """Every one found between the two, each shorter than the one before.

        What is far too short is refuted in no time, and what is a little longer than need be found
        soon: it leaves few ways. Long periods leave many, and take longer. So it begins near the
        least. Those that are nearly too short are not refuted in a long time: so what stays open is
        followed by what is longer, and only then, if there is time, looked at thoroughly. The least
        itself, which may have no bubble, comes after what is longer. At last come those just below
        the shortest found: one may be found though one or two that are longer stay open.
        """
        low_us, way = least_us - 1, _FIRST_WAY  # the longest that was not found
        rise_us = (_MOST_RISE - 1) * least_us
        while self.spent_s < self.seconds and not self.should_stop():
            gap_us = high_us - low_us
            is_narrow = gap_us <= max(1, _PRECISION * high_us)
            is_done = is_narrow and (low_us >= least_us or gap_us <= 1)
            is_over = is_done or self.open_in_a_row >= self._most_open
            if is_over or self._is_soon_thorough:
                # Briefly; what that has left open is between what is refuted and what is found.
                floor_us = max(least_us - 1, self.refuted_us)
                is_open_below = floor_us < low_us and high_us - floor_us > 1
                is_of_use = is_open_below or not is_over
                if self.is_thorough or not is_of_use or not self._has_time:
                    break
                self.is_thorough, self.open_in_a_row = True, 0
                low_us, way, is_narrow = floor_us, _FIRST_THOROUGH_WAY, False
            step_us = 0 if is_narrow else min(way * (high_us - low_us), rise_us)
            if self.open_in_a_row and not self.is_found:
                step_us = min(step_us, _RISE_AFTER_OPEN * low_us)
            period_us = low_us + max(1, round(step_us))
            found = self._try(period_us)
            if found is None:
                low_us, way = period_us, self._next_way
                rise_us *= _MOST_RISE
            else:
                high_us, way = period_us, max(_LEAST_WAY, way - _LESS_WAY)
                yield found
        if self.is_thorough and self.is_found:
            yield from self._run_below(least_us, high_us)

    def _run_below(self, least_us: int, high_us: int) -> Iterator[Round]:
        """Those just below the shortest found that have stayed open."""
        period_us, self.open_in_a_row = high_us, 0
        while self._has_time and self.open_in_a_row < _MOST_OPEN_BELOW and not self.should_stop():
            period_us -= max(1, round(_PRECISION * period_us))
            if period_us <= max(least_us - 1, self.refuted_us):
                return
            if period_us not in self.tried_us:
                found = self._try(period_us)
                if found is not None:
                    yield found

    def _try(self, period_us: int) -> Round | None:
        found = self._find(period_us)
        if self.is_thorough:
            self.tried_us.add(period_us)
        self.is_found |= found is not None
        return found

    @property
    def _next_way(self) -> float:
        """After a period that has not been found."""
        if self.open_in_a_row:
            return _WAY_AFTER_OPEN
        return _WAY_BETWEEN if self.is_found or self.is_rival else _FIRST_WAY

    def _find(self, period_us: int) -> Round | None:
        model, left_s = RoundModel(self.instance, self.size, period_us), self.seconds - self.spent_s
        if self.is_thorough:
            each_s = min(left_s, _MOST_TO_FIND * self._thorough_s)
        else:
            share = _SHARE_OF_ONE if self.is_found else _SHARE_OF_FIRST
            each_s = min(left_s, share * self.seconds, _MOST_PAIR_S * self._num_ops**2)
        # Of four seeds three find in seconds what the fourth does not.
        seed = self.seed + self.open_in_a_row
        found, spent_s, is_refuted = model.solve(
            each_s, seed, self.should_stop, is_thorough=self.is_thorough
        )
        self.spent_s += spent_s
        if is_refuted:
            self.refuted_us = max(self.refuted_us, period_us)
        is_open = found is None and not is_refuted
        self.open_in_a_row = self.open_in_a_row + 1 if is_open else 0
        return found

    @property
    def _most_open(self) -> int:
        is_half_spent = 2 * self.spent_s > self.seconds
        is_one = (self.is_rival or is_half_spent) and not self.is_found
        return 1 if is_one else _MOST_OPEN

    @property
    def _is_soon_thorough(self) -> bool:
        """Whether brief tries take nearly as long, and a round and what is too short are found."""
        brief_s = _MOST_PAIR_S * self._num_ops**2
        is_between = self.is_found and self.refuted_us > 0 and not self.is_thorough
        return is_between and 2 * brief_s > self._thorough_s and self._has_time

    @property
    def _has_time(self) -> bool:
        """Whether what is left is enough for a thorough try."""
        return self.seconds - self.spent_s >= self._thorough_s

    @property
    def _thorough_s(self) -> float:
        """What a round takes to be found in one, about."""
        ops = self._num_ops
        return min(_THOROUGH_OP_S * ops, _THOROUGH_PAIR_S * ops**2)

    @property
    def _num_ops(self) -> int:
        return num_ops(self.instance, self.size)
