"""Bounds by refuting values: the largest least value of all sets, with few questions."""

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from synth.solver.bounds.destructive import Decision, DestructiveBounds, Ranks
from synth.solver.tuning import DESTRUCTIVE

Question = tuple[Ranks, int, float]


def asked_of(
    least_us: Mapping[Ranks, int],
    value_us: int,
    *,
    known_us: int = 0,
    limit_s: float = 1_000.0,
    answers: Callable[[Ranks, int, float], bool] = lambda *_: True,
) -> tuple[int, Sequence[Question], DestructiveBounds]:
    """The bound by sets of known least values, and all questions; one that answers takes 0.1 s."""
    questions: list[Question] = []

    def decide(ranks: Ranks, middle_us: int, effort_s: float) -> Decision:
        questions.append((ranks, middle_us, effort_s))
        if not answers(ranks, middle_us, effort_s):
            return Decision(None, is_refuted=False, spent_s=effort_s)
        is_refuted = least_us[ranks] > middle_us
        return Decision(None if is_refuted else middle_us, is_refuted, 0.1)

    bounds = DestructiveBounds(list(least_us), known_us, value_us, decide, limit_s, lambda: False)
    raised = [one.bound_us for one in bounds.run()]
    assert raised == sorted(set(raised)) and (not raised or raised[-1] == bounds.bound_us)
    return bounds.bound_us, questions, bounds


@pytest.mark.parametrize("seed", range(50))
def test_the_bound_is_the_largest_least_value_but_for_the_tolerance(seed: int) -> None:
    rng = random.Random(seed)
    least_us: dict[Ranks, int] = {
        (rank,): rng.randint(1, 100_000) for rank in range(rng.randint(1, 16))
    }
    best_us = max(least_us.values())
    value_us = best_us + rng.choice([0, 1, 50, 20_000])
    bound_us, *_ = asked_of(least_us, value_us, known_us=rng.randint(0, best_us))
    assert bound_us <= best_us <= bound_us + DESTRUCTIVE.tolerance * value_us
    best_first: dict[Ranks, int] = dict(sorted(least_us.items(), key=lambda one: -one[1]))
    assert len(asked_of(best_first, value_us)[1]) <= 2 * len(least_us) + 30


def test_the_first_question_is_a_quarter_of_what_known_values_leave_open() -> None:
    """Also where all sets are known to keep within less than the best value."""
    attained: dict[Ranks, int] = {(0,): 4_000, (1,): 1_000}
    questions = list[tuple[Ranks, int]]()

    def decide(ranks: Ranks, middle_us: int, effort_s: float) -> Decision:
        questions.append((ranks, middle_us))
        return Decision(None, is_refuted=middle_us < 3_000, spent_s=effort_s)

    bounds = DestructiveBounds([*attained], 0, 8_000, decide, 1.0, lambda: False, attained)
    assert [one.bound_us for one in bounds.run()] == [1_001, 1_751]
    assert questions == [((0,), 1_000), ((0,), 1_750)]


def test_a_set_that_keeps_a_value_is_not_asked_for_a_larger_one() -> None:
    """Of 0 to 8,000 a quarter is refuted by the last set only; the others are done with.

    They are asked for a quarter of what is open as long as the value known is the least one kept.
    """
    least_us: dict[Ranks, int] = {(0,): 1_000, (1,): 2_000, (2,): 7_000}
    _, questions, _ = asked_of(least_us, 8_000)
    first = [(ranks, middle_us) for ranks, middle_us, _ in questions[:4]]
    assert first == [((0,), 2_000), ((1,), 2_000), ((2,), 2_000), ((2,), 3_500)]
    assert {ranks for ranks, *_ in questions[4:]} == {(2,)}


def test_at_last_the_value_known_is_proven_to_be_the_least() -> None:
    assert asked_of({(0,): 100_000}, 100_000)[0] == 100_000
    assert asked_of({(0,): 100_000}, 100_001)[0] <= 100_000


def test_a_question_without_an_answer_is_asked_again_with_more_effort() -> None:
    """The second set answers from three times the first effort on, and then proves its value."""
    effort_s = DESTRUCTIVE.first_effort_s

    def answers(ranks: Ranks, _: int, given_s: float) -> bool:
        return ranks == (0,) or given_s > effort_s

    bound_us, questions, _ = asked_of({(0,): 3_000, (1,): 9_000}, 10_000, answers=answers)
    assert 8_995 <= bound_us <= 9_000
    assert {given_s for ranks, _, given_s in questions if ranks == (0,)} == {effort_s}
    assert {given_s for _, _, given_s in questions} == {
        effort_s,
        DESTRUCTIVE.effort_growth * effort_s,
    }


def test_questions_end_with_the_time() -> None:
    bound_us, questions, bounds = asked_of({(0,): 9_000}, 10_000, limit_s=0.25)
    assert len(questions) == 3 and bounds.left_s <= 0
    assert bound_us <= 9_000


def test_what_is_known_of_sets_ends_a_second_run_at_once() -> None:
    *_, bounds = asked_of({(0,): 3_000, (1,): 9_000}, 10_000)
    bounds.decide = lambda *_: pytest.fail("asked again")
    assert not list(bounds.run())


def test_a_question_that_was_left_open_is_asked_again_only_with_more_effort() -> None:
    *_, bounds = asked_of({(0,): 9_000}, 10_000, limit_s=3.0, answers=lambda *_: False)
    first_s = {spent_s for _, spent_s in bounds.left_open[0,]}
    assert first_s == {DESTRUCTIVE.first_effort_s}
    asked = list[float]()

    def decide(_: Ranks, middle_us: int, effort_s: float) -> Decision:
        asked.append(effort_s)
        return Decision(None, is_refuted=middle_us < 9_000, spent_s=0.1)

    bounds.decide, bounds.left_s = decide, 100.0
    assert 8_995 <= max(one.bound_us for one in bounds.run()) <= 9_000
    assert asked[0] > DESTRUCTIVE.first_effort_s


def test_a_brief_run_ends_with_the_first_round_that_raises_nothing() -> None:
    efforts = list[float]()

    def decide(_: Ranks, middle_us: int, effort_s: float) -> Decision:
        efforts.append(effort_s)
        is_refuted = middle_us < 3_000 and effort_s > 0
        return Decision(None, is_refuted, spent_s=effort_s)

    bounds = DestructiveBounds([(0,)], 0, 10_000, decide, 1_000.0, lambda: False)
    assert max(one.bound_us for one in bounds.run(is_brief=True)) > 2_500
    growth = DESTRUCTIVE.effort_growth
    assert {*efforts} <= {growth**n * DESTRUCTIVE.first_effort_s for n in range(3)}
    efforts.clear()
    assert not list(bounds.run(is_brief=True))
    assert not efforts  # all was left open with as much effort
