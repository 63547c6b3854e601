"""The search for the interval of a modulo schedule: intervals, their order and their time."""

from dataclasses import replace

import pytest

from synth.solver.modulo import interval_search
from synth.solver.modulo.cyclic_ops import CyclicSchedule
from synth.solver.modulo.interval_search import IntervalSearch
from synth.solver.modulo.modulo_model import ModuloModel
from synth.solver.tuning import INTERVAL_SEARCH
from tests.synth.even_stages import even

# Time for brief tries only, and for thorough ones.
NO_TIME_S, TIME_S = 0.001, 1.0


def narrowed(
    shortest_us: int,
    open_us: range,
    high_us: int,
    *,
    is_challenger: bool = False,
    seconds: float = NO_TIME_S,
    still_open_us: range = range(0),
) -> tuple[list[int], list[int]]:
    """The intervals that are tried, and those found, where this one and longer ones can be found.

    Args:
        open_us: the intervals that brief tries leave open.
        still_open_us: those that thorough ones leave open too.
    """
    tried: list[int] = []

    class Pretended(IntervalSearch):
        def _find(self, interval_us: int) -> CyclicSchedule | None:
            tried.append(interval_us)
            is_open = interval_us in (still_open_us if self.is_thorough else open_us)
            is_found = interval_us >= shortest_us and not is_open
            self.open_in_a_row = self.open_in_a_row + 1 if is_open else 0
            if not (is_open or is_found):
                self.refuted_us = max(self.refuted_us, interval_us)
            return CyclicSchedule({}, interval_us, 2) if is_found else None

    intervals = Pretended(even(2, 3, 12), 2, seconds, 0, lambda: False, is_challenger).run(
        1000, high_us
    )
    return tried, [found.interval for found in intervals]


def test_the_interval_is_narrowed_from_near_the_least() -> None:
    tried, found = narrowed(1100, range(0), 2000)
    assert found == sorted(found, reverse=True)
    assert found[-1] <= 1.002 * 1100
    assert max(tried) <= 1250
    assert len(tried) < 15


def test_the_least_interval_itself_is_tried_last() -> None:
    tried, found = narrowed(1000, range(0), 2000)
    assert (tried[-1], found[-1]) == (1000, 1000)


def test_what_is_far_too_long_is_not_tried_while_nothing_is_found() -> None:
    tried, found = narrowed(5000, range(0), 10**9)
    assert tried[0] <= 1250
    assert max(tried) < 1.4 * 5000
    assert found[-1] <= 1.002 * 5000


def test_a_size_is_given_up_that_is_neither_found_nor_refuted() -> None:
    tried, found = narrowed(10**6, range(1100, 10**6), 2000)
    assert found == []
    first, second = (us for us in tried if us >= 1100)
    assert (first, second) == (tried[-2], tried[-1])
    assert second == round(1.02 * first)
    tried, found = narrowed(10**6, range(1100, 10**6), 2000, is_challenger=True)
    assert [us for us in tried if us >= 1100] == tried[-1:]
    tried, found = narrowed(1240, range(1100, 1240), 2000)
    assert found
    assert [us for us in tried if 1100 <= us < 1240] == tried[-2:]


def test_what_is_a_little_longer_than_what_stays_open_is_found() -> None:
    tried, found = narrowed(1260, range(1100, 1260), 2000)
    assert found and min(found) < 1.01 * 1260
    assert max(tried) < 1.03 * 1260


def test_what_stays_open_is_looked_at_thoroughly_where_there_is_time() -> None:
    """Between refuted and found intervals, also if brief tries found nothing at all."""
    for shortest_us, open_us in ((1150, range(1100, 1300)), (1150, range(1050, 10**6))):
        for is_challenger in (False, True):
            tried, found = narrowed(
                shortest_us, open_us, 2000, is_challenger=is_challenger, seconds=TIME_S
            )
            assert shortest_us <= found[-1] <= 1.002 * shortest_us
            assert len(tried) < 25
    tried, found = narrowed(10**6, range(1100, 10**6), 2000, seconds=TIME_S)
    assert found == []
    assert max(tried) < 2000


def test_what_is_just_below_the_shortest_found_may_be_found() -> None:
    """Though what is between stays open."""
    tried, found = narrowed(1150, range(1100, 1300), 2000, seconds=TIME_S)
    longer_us = range(found[-1] + 1, found[-1] + 3)
    tried, found = narrowed(1150, range(1100, 1300), 2000, seconds=TIME_S, still_open_us=longer_us)
    assert found[-1] < longer_us.start
    assert len(tried) < 25


def test_where_brief_tries_take_as_long_thorough_ones_follow_the_first_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_us = range(1100, 1200)
    briefly, _ = narrowed(1150, open_us, 2000, seconds=TIME_S)
    longer_tries = replace(INTERVAL_SEARCH, most_s_per_pair=INTERVAL_SEARCH.thorough_s_per_pair)
    monkeypatch.setattr(interval_search, "INTERVAL_SEARCH", longer_tries)
    tried, found = narrowed(1150, open_us, 2000, seconds=TIME_S)
    assert found[-1] <= 1.002 * 1150
    assert sum(us in open_us for us in tried) < sum(us in open_us for us in briefly)


def test_thorough_tries_are_made_once() -> None:
    """Intervals that they leave open too are given up."""
    never = range(1100, 10**6)
    briefly, _ = narrowed(10**6, never, 2000)
    tried, found = narrowed(10**6, never, 2000, seconds=TIME_S, still_open_us=never)
    assert found == []
    assert tried[: len(briefly)] == briefly
    assert len(tried[len(briefly) :]) == 2


def test_a_try_has_its_share_and_is_thorough_when_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, bool]] = []

    def solve_none(
        _: object, seconds: float, *__: object, is_thorough: bool
    ) -> tuple[None, float, bool]:
        asked.append((seconds, is_thorough))
        return None, 0.0, False

    monkeypatch.setattr(ModuloModel, "solve", solve_none)
    four = IntervalSearch(even(8, 9, 64), 4, 1000.0, 0, lambda: False, is_challenger=False)
    assert list(four.run(600, 900)) == []
    ops = 4 * 8 * 3
    brief, thorough = (
        (INTERVAL_SEARCH.most_s_per_pair * ops**2, False),
        (INTERVAL_SEARCH.thorough_factor * INTERVAL_SEARCH.thorough_s_per_pair * ops**2, True),
    )
    assert asked == [brief, brief, thorough, thorough]


def test_a_size_whose_first_try_takes_most_of_its_effort_is_given_up_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time that it leaves is for others, which may be found sooner."""
    asked: list[float] = []

    def solve_none(
        _: object, seconds: float, *__: object, is_thorough: bool
    ) -> tuple[None, float, bool]:
        asked.append(seconds)
        return None, seconds, False

    monkeypatch.setattr(ModuloModel, "solve", solve_none)
    for try_s_of_all, tries in ((0.55, 1), (0.45, 2)):
        asked.clear()
        seconds = INTERVAL_SEARCH.most_s_per_pair * (4 * 8 * 3) ** 2 / try_s_of_all
        four = IntervalSearch(even(8, 9, 64), 4, seconds, 0, lambda: False, is_challenger=False)
        assert list(four.run(600, 900)) == []
        assert len(asked) == tries
