"""The chart of the terminal where ranks hold several stages, and where ops are short."""

from itertools import combinations

import pytest
from rich.color import Color

from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.report.text.drawing import LOOKS
from synth.report.text.gantt import gantt
from synth.schedule.measured.execution_trace import OpSpans, planned_spans
from synth.schedule.verify import verify

# Two stages on each of two ranks, two micro-batches; a unit is 1 ms, and the makespan 13 ms.
EXPECTED = {
    32: """
        rank 0  F░F░··fb▒f░b▒B▒w▓Bw▓W▓W▓
        rank 1  ··F░f░Ff░b▒B▒b▒B▒wW▓w▓W▓
        """,
    56: """
        rank 0  F0░░F1░····f0░░b0▒f1░░b1▒▒B0▒▒w0▓B1▒▒w1▓▓W0▓W1▓▓
        rank 1  ····F0░f0░░F1░░f1░b0▒▒B0▒▒b1▒▒B1▒w0▓▓W0▓▓w1▓W1▓▓
        """,
    92: """
        rank 0  F0.0░░F0.1░░░······F3.0░░░B3.0▒▒F3.1░░░B3.1▒▒B0.0▒▒▒W3.0▓▓B0.1▒▒▒W3.1▓▓W0.0▓▓▓W0.1▓▓
        rank 1  ······F1.0░░░F2.0░░F1.1░░░F2.1░░B2.0▒▒▒B1.0▒▒B2.1▒▒▒B1.1▒▒W2.0▓▓▓W1.0▓▓W2.1▓▓▓W1.1▓▓
        """,
}


def spans_of(name: str, num_micro_batches: int, num_stages: int = 4) -> OpSpans:
    costs = uniform_costs(
        num_stages, forward_us=1000, backward_input_us=1000, backward_weight_us=1000
    )
    return planned_spans(verify(generate(name, 2, num_micro_batches), costs)[1])


@pytest.mark.parametrize("width", EXPECTED)
def test_stages_of_a_rank_are_told_apart_at_every_width(width: int) -> None:
    lines = gantt(spans_of("zb-v", 2), width).plain.split("\n")
    assert [line.strip() for line in lines[:2]] == [
        line.strip() for line in EXPECTED[width].strip().split("\n")
    ]
    text = "\n".join(lines)
    assert "lower case: a rank's second stage" in text
    assert ("F1.2: stage 1, micro-batch 2" in text) == (width == 92)


def test_of_ops_shorter_than_a_column_the_share_of_time_is_shown() -> None:
    # 1F1B: rank 0 works 120 of 123 ms, rank 1 as long; a column is 1/40 of that.
    spans = spans_of("1f1b", 40, num_stages=2)
    lines = gantt(spans, 48).plain.split("\n")
    assert lines[0] == "rank 0  ▅▆█████████████████████████████████████▅"
    for line in lines[:2]:
        eighths = ["·▁▂▃▄▅▆▇█".index(cell) for cell in line[8:]]
        assert sum(eighths) / (8 * 40) == pytest.approx(120 / 123, abs=0.01)
    assert "share of a column's time in ops" in "\n".join(lines)


def test_kinds_are_told_apart_without_colour_and_with_it() -> None:
    shades = [look.shade for look in LOOKS.values()]
    assert len(set(shades)) == len(shades)
    chart = gantt(spans_of("interleaved:2", 2), 100, colour=True)
    grounds = {str(part.style).rpartition("black on ")[2] for part in chart.spans}
    grounds = {ground.removeprefix("white on ") for ground in grounds if "#" in ground}
    assert len(grounds) == 4  # F and BW, each on two stages
    for one, other in combinations(grounds, 2):
        apart = zip(*(Color.parse(each).get_truecolor() for each in (one, other)), strict=True)
        assert max(abs(a - b) for a, b in apart) > 40
