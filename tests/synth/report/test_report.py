"""Pictures and tables, as they stand on the screen."""

import re
from collections.abc import Sequence

import pytest

from synth.cli.answer.baselines import baselines_table
from synth.costs.costs import uniform_costs
from synth.families import generate
from synth.objective import Objective
from synth.profile.links import Link, Links
from synth.profile.throughput import Throughput
from synth.report.explain.run_against_plan import RunComparison, comparison_text
from synth.report.text.axis import TickLabels, axis
from synth.report.text.gantt import gantt, render
from synth.report.text.tables import fitted_table, table
from synth.schedule.measured.execution_trace import (
    OpSpan,
    OpSpans,
    moved_spans,
    planned_execution,
    planned_spans,
)
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.schedule.verify import verify
from synth.solver.result import Baseline


def spans_of(name: str, num_ranks: int = 4, num_micro_batches: int = 4) -> OpSpans:
    costs = uniform_costs(
        num_ranks, forward_us=1000, backward_input_us=1000, backward_weight_us=1000
    )
    return planned_spans(verify(generate(name, num_ranks, num_micro_batches), costs)[1])


def screen(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def test_a_chart_is_true_to_scale_and_readable_without_colour() -> None:
    # 15 units of 1 ms in 60 cells: 4 cells each.
    expected = """
        rank 0  F0░░F1░░F2░░F3░░············B0▒▒W0▓▓B1▒▒W1▓▓B2▒▒W2▓▓B3▒▒W3▓▓
        rank 1  ····F0░░F1░░F2░░········B0▒▒F3░░B1▒▒W0▓▓B2▒▒W1▓▓B3▒▒W2▓▓W3▓▓
        rank 2  ········F0░░F1░░····B0▒▒F2░░B1▒▒F3░░B2▒▒W0▓▓B3▒▒W1▓▓W2▓▓W3▓▓
        rank 3  ············F0░░B0▒▒F1░░B1▒▒F2░░B2▒▒F3░░B3▒▒W0▓▓W1▓▓W2▓▓W3▓▓
                ┬───────────────────┬───────────────────┬──────────────────┬
                0 ms                5                   10                 15
                F░ forward   B▒ input gradient   W▓ weight gradient   · idle
                F2: micro-batch 2   1 column = 250 µs
    """
    assert screen(gantt(spans_of("zb-h1"), 68).plain) == screen(expected)


def test_measured_stands_under_planned_on_one_scale() -> None:
    planned = [[OpSpan(Op.parse("F0.0"), 0, 1000), OpSpan(Op.parse("BW0.0"), 1000, 3000)]]
    measured = [[OpSpan(Op.parse("F0.0"), 0, 2000), OpSpan(Op.parse("BW0.0"), 2000, 4000)]]
    expected = """
        rank 0  planned   F0░░░░░░BW0▚▚▚▚▚▚▚▚▚▚▚▚▚········
                measured  F0░░░░░░░░░░░░░░BW0▚▚▚▚▚▚▚▚▚▚▚▚▚
    """
    chart = gantt({"planned": planned, "measured": measured}, 50).plain
    assert screen(chart)[:2] == screen(expected)


def test_an_op_of_one_cell_is_its_letter_and_bw_is_told_from_b() -> None:
    # Labels are decided for all ops of a kind together: no F here has its number.
    times = [("F0.0", 0, 10), ("BW0.0", 10, 20), ("F0.1", 20, 200)]
    spans = [[OpSpan(Op.parse(token), start, end) for token, start, end in times]]
    chart = screen(gantt(spans, 28).plain)
    assert chart[0] == "rank 0  FXF░░░░░░░░░░░░░░░░░"
    assert "X▚ BW, both gradients" in "\n".join(chart)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("size", [(4, 8), (8, 16), (16, 48)])
def test_no_line_is_wider_than_asked(width: int, size: tuple[int, int]) -> None:
    lines = gantt(spans_of("1f1b", *size), width).plain.split("\n")
    legend = lines[size[0] + 2 :]
    assert all(len(line) == width for line in lines[: size[0]])
    assert all(len(line) <= max(width, 64) for line in legend)


def test_an_empty_chart_is_drawn() -> None:
    assert gantt([[], []], 40).plain.startswith("rank 0  ···")


def test_output_that_is_no_terminal_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    print(render(spans_of("1f1b"), width=80))
    assert "\x1b" not in capsys.readouterr().out


def test_colours_come_on_a_terminal_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in render(spans_of("1f1b"), width=80)
    monkeypatch.setenv("NO_COLOR", "1")
    plain = render(spans_of("1f1b"), width=80)
    assert "\x1b[3" not in plain and "\x1b[4" not in plain
    assert "F0░" in plain


@pytest.mark.parametrize(
    ("end_us", "first_label", "last_label"),
    [
        (80, "0 µs", "80"),
        (8_000, "0 ms", "8"),
        (8_000_000, "0 s", "8"),
        (1_500_000, "0 ms", "1,400"),
    ],
)
def test_an_axis_has_round_ticks_and_one_unit(
    end_us: int, first_label: str, last_label: str
) -> None:
    ruler, labels = axis(0, end_us, 80)
    assert len(ruler) == 80
    assert labels.startswith(first_label)
    assert labels.endswith(last_label)


def test_a_late_part_of_an_axis_begins_with_the_time_that_its_labels_follow() -> None:
    labels = axis(4_953_000, 4_954_000, 80)[1].split()
    assert labels == ["4.953", "s", "+0", "µs", "+200", "+400", "+600", "+800", "+1,000"]
    assert axis(250_000, 500_000, 60)[1].split()[:2] == ["250", "ms"]


@pytest.mark.parametrize(
    ("ticks_us", "title", "labels"),
    [
        (range(0, 1_400_000, 200_000), "time, s", ["0", "0.2"]),
        (range(250_000, 510_000, 50_000), "time, ms", ["250", "300"]),
        (range(4_953_200, 4_954_300, 100), "time after 4.953 s, ms", ["0.2", "0.3"]),
        (range(10_260_000, 10_510_000, 20_000), "time after 10.2 s, ms", ["60", "80"]),
        ([123_456, 123_457, 123_458], "time after 123.45 ms, µs", ["6", "7"]),
        ([7_000], "time, µs", ["7,000"]),
    ],
)
def test_labels_of_ticks_have_few_digits_in_the_unit_of_their_range(
    ticks_us: Sequence[int], title: str, labels: list[str]
) -> None:
    shown = TickLabels.of(ticks_us, ticks_us[-1] - ticks_us[0])
    assert shown.title == title
    assert [shown.label(tick_us) for tick_us in ticks_us[:2]] == labels


@pytest.mark.parametrize("width", range(40, 400, 30))
def test_names_in_a_chart_have_one_form_which_the_legend_explains(width: int) -> None:
    costs = uniform_costs(8, forward_us=1000, backward_input_us=1500, backward_weight_us=400)
    spans = planned_spans(verify(generate("zb-v", 4, 12), costs)[1])
    chart = gantt(spans, width).plain
    rows, legend = chart.split("┬")[0], chart.split("┬")[-1]
    named = re.findall(r"[A-Za-z]([\d.]+)", re.sub(r"rank +\d", "", rows))
    with_stage = [name for name in named if "." in name]
    assert with_stage in ([], named)
    assert ("F1.2: stage 1" in legend) == bool(with_stage)
    assert ("F2: micro-batch 2" in legend) == bool(named and not with_stage)


def test_a_table_aligns_numbers_on_the_point_and_text_on_the_left() -> None:
    rows = [("1f1b", "1.25", "no"), ("zb-h1", "1,000.5", "yes"), ("ours", "12", "n/a")]
    expected = [
        "name       time  fits",
        "             ms",
        "─────  ────────  ────",
        "1f1b       1.25  no",
        "zb-h1  1,000.5   yes",
        "ours      12     n/a",
    ]
    assert table(("name", "time\nms", "fits"), rows).split("\n") == expected


def test_the_rivals_table_gives_each_schedule_its_own_overhead_and_idle_share() -> None:
    first_peaks, own_peaks = (30 * 10**9, 7 * 10**9), (19 * 10**9, 20 * 10**9)
    baselines = [
        Baseline("1f1b", 2_000_000, 2_000_000, 900_000, first_peaks, False, mean_work_us=8e5),
        Baseline("this plan", 1_600_000, 1_250_000, 10**6, own_peaks, True, mean_work_us=7.5e5),
    ]
    speeds = {"1f1b": Throughput("tokens", 51.5), "this plan": Throughput("tokens", 64.0)}
    expected = """
        schedule    makespan     period  over ideal    mean idle  peak memory  on rank  fits  tokens
                          ms         ms           %  % of period           GB                  per s
        ─────────  ─────────  ─────────  ──────────  ───────────  ───────────  ───────  ────  ──────
        1f1b       2,000.000  2,000.000      166.67        60.00       30.000        0  no        52
        this plan  1,600.000  1,250.000       66.67        40.00       20.000        1  yes       64
    """
    made = baselines_table(
        baselines,
        Objective.PERIOD,
        lambda one: Objective.PERIOD.over_ideal(one, 7.5e5),
        lambda one: speeds[one.name],
    )
    assert screen(made) == screen(expected)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(None, []), (34, []), (33, ["period"]), (24, ["period", "tokens"])],
)
def test_a_table_leaves_out_spare_columns_until_it_fits_and_names_them(
    width: int | None, left_out: list[str]
) -> None:
    header = ("schedule", "makespan\nms", "period\nms", "tokens\nper s")
    text = fitted_table(
        header, [("1f1b", "1,000", "900", "17")], width, ("period", "samples", "tokens")
    )
    first, *_, last = text.split("\n")
    for name in ("period", "tokens"):
        assert (name in first) == (name not in left_out)
    assert "make-" not in text
    if left_out:
        assert last == f"(in 34 columns also: {', '.join(left_out)})"
    else:
        assert last.startswith("1f1b")


def test_what_moves_has_rows_of_its_own_under_each_rank() -> None:
    # One rank, F 1, BW 2; O0 leaves 1 … 2 beside F1; L0 is called at 4, comes back 4 … 5.
    costs = uniform_costs(
        1,
        forward_us=1,
        backward_input_us=1,
        backward_weight_us=1,
        links=Links(host=Link(latency_us=1)),
    )
    program = map(Op.parse, ["F0.0", "O0.0", "F0.1", "BW0.1", "L0.0", "BW0.0"])
    chart = planned_execution(verify(Schedule.linear("by hand", 2, [program]), costs)[1])
    assert moved_spans(chart) == {
        "out": [[OpSpan(Op.parse("O0.0"), 1, 2)]],
        "back": [[OpSpan(Op.parse("L0.0"), 4, 5)]],
    }
    expected = """
        rank 0  planned  F0░░F1░░BW1▚▚▚▚▚····BW0▚▚▚▚▚
                out      ····O0››····················
                back     ················L0‹‹········
    """
    assert screen(render(chart.ops, moves=moved_spans(chart), width=45))[:3] == screen(expected)


def test_measured_moves_are_not_drawn_as_ops_though_they_take_a_moment() -> None:
    program = "F0.0 O0.0 K3.0 L0.0 G3.0 BW0.0"
    ends = [10, 11, 12, 13, 14, 34]
    pairs = zip(map(Op.parse, program.split()), [0, *ends], ends, strict=False)
    measured = [[OpSpan(op, start, end) for op, start, end in pairs]]
    planned = [[OpSpan(Op.parse("F0.0"), 0, 10), OpSpan(Op.parse("BW0.0"), 10, 30)]]
    shown = render(planned, measured=measured, width=60)
    row = screen(shown)[1].removeprefix("measured").strip()
    assert set(row) == set("F0░·BW▚") and "░·····BW0▚" in row
    assert "saved values" not in shown and "K" not in shown


@pytest.mark.parametrize(("shares", "line"), [((0.02, 0.31), True), ((0.1, None), False)])
def test_a_comparison_names_the_rank_that_waited_most_for_a_processor(
    shares: tuple[float | None, ...], line: bool
) -> None:
    found = RunComparison(
        plan="p",
        processors=2,
        predicted_us=100,
        predicted_shared_us=100,
        measured_us=300,
        measured_p10_us=300,
        measured_p90_us=300,
        predicted_peak_bytes=(1, 1),
        measured_peak_bytes=(1, 1),
        ops=(),
        waiting_shares=shares,
    )
    said = "\nbusy machine: rank 1 waited 31 % of these steps for a processor"
    assert (said in comparison_text(found)) == line
