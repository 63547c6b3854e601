"""With overlapping iterations, each cause of a difference is named, on the rank that counts."""

import random

import pytest

from synth.report.explain.difference import Difference, difference_text
from synth.report.explain.overlapping import explain_overlapping
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.measured.execution_trace import ExecutionTrace, planned_spans
from synth.schedule.simulate import simulate
from tests.synth.report.test_difference import happening, nodes_of, pieces, plan, random_happening

# Of ZB-H1 here: from its first F until it has heard for the last time of the slow last stage.
PACE = 0


def late_plan(name: str = "zb-h1") -> Lowered:
    return lower(plan(name).schedule, plan(name).costs)


def explain(lowered: Lowered, *executions: ExecutionTrace, rest_us: int = 0) -> Difference:
    """The difference of the first execution, which lasts `rest_us` beyond the pace setter's ops."""
    timeline = simulate(lowered)
    spans_us = [ops[-1].end_us - ops[0].start_us for ops in planned_spans(timeline)]
    mine = executions[0].ops[spans_us.index(max(spans_us))]
    measured_us = mine[-1].end_us - mine[0].start_us + rest_us
    found = explain_overlapping(timeline, executions, 0, measured_us, timeline.period_us)
    assert found.total_us == pytest.approx(found.measured_us - found.predicted_us)
    return found


def test_iterations_as_planned_have_nothing_to_explain() -> None:
    lowered = late_plan()
    assert pieces(explain(lowered, happening(lowered, {}, {}))) == {}


def test_slow_ops_of_the_pace_setter_are_ops() -> None:
    lowered = late_plan()
    nodes = nodes_of(lowered, PACE, "W")
    found = explain(lowered, happening(lowered, dict.fromkeys(nodes, 300), {}))
    assert found.rank == PACE
    # All but the last are over while it would have waited for its neighbour.
    assert pieces(found) == {"ops": 300 * len(nodes), "transfers": -300 * (len(nodes) - 1)}
    assert found.path[0].name == f"W, stage {PACE}"


def test_what_stands_before_the_first_backward_is_validation() -> None:
    lowered = late_plan()
    first = nodes_of(lowered, PACE, "B")[0]
    found = pieces(explain(lowered, happening(lowered, {}, {first: 700})))
    assert found == {"norm": 700, "transfers": -700}  # it would have waited later


def test_any_other_idle_time_with_all_there_is_a_gap() -> None:
    lowered = late_plan()
    last = nodes_of(lowered, PACE, "W")[-1]
    assert pieces(explain(lowered, happening(lowered, {}, {last: 90}))) == {"gaps": 90}


def test_a_slow_neighbour_is_waited_for() -> None:
    lowered = late_plan()
    slow = dict.fromkeys(nodes_of(lowered, PACE + 1, "B"), 4000)
    found = pieces(explain(lowered, happening(lowered, slow, {})))
    assert set(found) == {"transfers"}
    assert found["transfers"] > 0


def test_time_between_iterations_is_outside() -> None:
    lowered = late_plan()
    assert pieces(explain(lowered, happening(lowered, {}, {}), rest_us=250)) == {"outside": 250}


@pytest.mark.parametrize("seed", range(10))
def test_the_pieces_add_up_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    lowered = late_plan(draw.choice(["1f1b", "zb-h1", "zb-2p", "gpipe"]))
    executions = [random_happening(draw, lowered) for _ in range(2)]
    explain(lowered, *executions, rest_us=draw.randrange(1000))  # asserts the sum


def test_the_table_says_of_which_rank_it_speaks() -> None:
    lowered = late_plan()
    text = difference_text(explain(lowered, happening(lowered, {}, {}), rest_us=250))
    assert f"difference of the median iteration, on rank {PACE}" in text
    assert "validating the step before" in text
