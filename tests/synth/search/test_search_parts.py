"""The parts of all searches: shared time, the best so far, a stop that an answer sets."""

import threading
from typing import NamedTuple

from synth.search.best_so_far import BestSoFar
from synth.search.clock import Clock
from synth.search.conditional_stop import ConditionalStop


class Answer(NamedTuple):
    """An answer with one figure."""

    us: int

    @property
    def rank_key(self) -> tuple[int]:
        """Less is better."""
        return (self.us,)


def test_what_one_item_leaves_of_its_time_is_for_those_after_it() -> None:
    clock, spent_s, shares = Clock(10, is_deterministic=True), iter((1.0, 4.0, 9.0)), []
    for item, seconds in clock.shared("abc", 9):
        shares.append((item, seconds))
        clock.grant(next(spent_s))
    assert shares == [("a", 3.0), ("b", 4.0), ("c", 4.0)]
    assert [seconds for _, seconds in clock.shared("de", 9)] == [0, 0]  # all is spent


def test_only_what_is_better_than_all_before_is_told_from_any_thread() -> None:
    heard: list[int] = []
    so_far = BestSoFar[Answer](lambda answer: heard.append(answer.us))

    def offer(first: int) -> None:
        for us in range(first, 0, -2):
            so_far(Answer(us))

    threads = [threading.Thread(target=offer, args=(first,)) for first in (200, 199, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == sorted(set(heard), reverse=True)
    assert heard[-1] == 1 and so_far.best == Answer(1)


def test_a_listener_that_is_closed_before_the_first_answer_waits_for_it() -> None:
    so_far = BestSoFar[Answer]()
    assert so_far.close() is None
    so_far(Answer(3))
    assert so_far.close() == Answer(3)
    so_far(Answer(2))
    assert so_far.best == Answer(3)


def test_an_answer_stops_a_search_and_no_other() -> None:
    whole = threading.Event()
    one, other = (ConditionalStop[Answer](whole, lambda answer: answer.us < 5) for _ in range(2))
    one.watch(Answer(5))
    assert not one.is_set()
    one.watch(Answer(4))
    assert one.is_set() and not other.is_set() and not whole.is_set()
    whole.set()
    assert other.is_set()
