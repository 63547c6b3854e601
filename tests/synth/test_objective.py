"""Makespan, period, and the time of K iterations."""

import pytest

from synth.objective import Objective, Spans


def test_iterations_back_to_back_are_a_makespan_and_periods() -> None:
    spans = Spans(makespan_us=1000, period_us=800)
    assert Objective.MAKESPAN.value_us(spans) == 1000
    assert Objective.PERIOD.value_us(spans) == 800
    assert Objective.of_iterations(4).value_us(spans) == 1000 + 3 * 800
    assert Objective.of_iterations(1) == Objective.MAKESPAN


def test_the_bubble_rate_of_iterations_counts_the_work_of_each() -> None:
    spans = Spans(makespan_us=1000, period_us=800)
    assert Objective.MAKESPAN.bubble_rate(spans, 700) == pytest.approx(0.3)
    assert Objective.of_iterations(2).bubble_rate(spans, 700) == pytest.approx(1 - 1400 / 1800)


def test_the_spans_of_ranks_are_counted_from_the_first_op_and_from_their_own() -> None:
    assert Spans.of_ranks([(0, 9), (3, 11), (5, 10)]) == (11, 9)


@pytest.mark.parametrize("text", ["makespan", "period", "iterations:2", "iterations:10000"])
def test_what_is_written_is_read_again(text: str) -> None:
    assert str(Objective.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["speed", "", "Makespan", "iterations", "iterations:0", "iterations:10001", "3"]
)
def test_what_is_no_objective_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(ValueError, match="known: makespan, period, or iterations:K"):
        Objective.parse(text)


@pytest.mark.parametrize("weights", [(0, 0), (2, 1), (0, 2), (1, -1)])
def test_weights_that_are_no_number_of_iterations_are_refused(weights: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="makespans and"):
        Objective(*weights)
