"""The page of charts, used with mouse and keys in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from synth.costs.costs import uniform_costs
from synth.op_kinds import OpKind
from synth.report.chart.chart import Chart
from synth.report.chart.palette import COLOURS
from synth.report.chart.timed import TimedSchedule
from synth.report.html.page import ScheduleMenu, page
from synth.report.picture.pareto import pareto_picture
from synth.report.picture.svg import svg_text
from synth.report.text.pareto import Mark, Pareto
from synth.schedule.files.plan_file import Plan
from synth.schedule.model import Placement, Schedule
from synth.schedule.ops import Op
from synth.schedule.verify import verify
from tests.synth.browser import chromium, opened
from tests.synth.report.test_html import linear, make_plan

# The plan of most tests: two stages per rank.
PLAN = make_plan("zb-v", num_micro_batches=6)
OTHER = make_plan("interleaved:2", num_micro_batches=8)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the plan below another one."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    charts = [Chart.planned(plan.name, plan, plan.check()[1]) for plan in (OTHER, PLAN)]
    path.write_text(page("two plans", charts), encoding="utf-8")
    return path


@pytest.fixture
def view(browser: Any, file: Path) -> Iterator[Any]:
    with opened(browser, file) as shown:
        yield shown


def test_the_reason_of_a_plan_stands_above_the_charts(browser: Any, tmp_path: Path) -> None:
    timeline = PLAN.check()[1]
    charts = [Chart.planned("first", OTHER, OTHER.check()[1])]
    charts.append(Chart.planned("second", PLAN, timeline, "memory <b>binds</b>."))
    path = tmp_path / "page.html"
    path.write_text(page("two plans", charts), encoding="utf-8")
    with opened(browser, path) as view:
        assert view.inner_text("#why").strip() == "why (second): memory <b>binds</b>."
        top = view.evaluate("viewer.canvas.getBoundingClientRect().top")
        assert top >= view.evaluate("byId('why').getBoundingClientRect().bottom")


def place_of(view: Any, chart: int, node: int) -> tuple[float, float]:
    """The middle of an op in the window."""
    x, y = view.evaluate(
        """([number, node]) => {
            const chart = viewer.charts[number];
            const frame = viewer.canvas.getBoundingClientRect();
            const x = viewer.xOf(chart.start[node] + chart.duration[node] / 2);
            return [frame.left + x, frame.top + viewer.middleOf(chart, chart.rankOf(node))];
        }""",
        [chart, node],
    )
    return x, y


def node_of(plan: Plan, token: str) -> int:
    """The node of an op, and its place in the simulation."""
    lowered, _ = plan.check()
    return [op for ops in lowered.ops for op in ops].index(Op.parse(token))


def tip(view: Any) -> str:
    shown: str = view.locator("#tip").inner_text()
    return shown


def times(view: Any) -> tuple[float, float]:
    """The time at the left edge, and that of a pixel."""
    from_us, us_per_pixel = view.evaluate("[viewer.fromUs, viewer.usPerPixel]")
    return from_us, us_per_pixel


def settle(view: Any) -> None:
    view.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")


def test_pointing_at_an_op_tells_of_it_and_of_what_it_waited_for(view: Any) -> None:
    lowered, timeline = PLAN.check()
    node = node_of(PLAN, "F1.0")
    view.mouse.move(*place_of(view, 1, node))
    told = tip(view)
    assert told.startswith("F1.0: forward\n")
    assert "rank 1, stage 1, micro-batch 0" in told
    assert "layers 3–5 (" in told
    assert f"start {timeline.start_us[node] / 1000:.4g} ms" in told
    assert "waited for activation of stage 0, micro-batch 0, from rank 0 to rank 1" in told
    assert "which waited for F0.0 on rank 0" in told
    assert "memory " in told
    busy = node_of(PLAN, "F0.1")
    assert lowered.predecessors[busy] == [busy - 1]
    view.mouse.move(*place_of(view, 1, busy))
    assert "waited for F0.0 before it" in tip(view)


def test_pointing_at_memory_tells_level_static_and_peak(view: Any) -> None:
    x, y = place_of(view, 1, node_of(PLAN, "F1.2"))
    below = view.evaluate("viewer.layout.rows[0].height")
    view.mouse.move(x, y + below)
    told = tip(view)
    assert told.startswith("rank 1 at ")
    assert "runs F1.2" in told
    assert "static" in told and "peak" in told


def test_the_wheel_zooms_at_the_pointer_and_drags_pan(view: Any) -> None:
    from_us, us_per_pixel = times(view)
    view.mouse.move(600, 300)
    at = view.evaluate("viewer.usAt(600)")
    view.mouse.wheel(0, -400)
    settle(view)
    zoomed_us, closer = times(view)
    assert closer < us_per_pixel / 2
    assert view.evaluate("viewer.usAt(600)") == pytest.approx(at)
    view.mouse.down()
    view.mouse.move(500, 300, steps=4)
    view.mouse.up()
    assert times(view)[0] == pytest.approx(zoomed_us + 100 * closer)
    view.mouse.dblclick(600, 300)
    assert times(view) == (from_us, us_per_pixel)


def test_buttons_and_keys_do_the_same(view: Any) -> None:
    whole = times(view)
    buttons, keys = [], []
    for button in ("#zoom-in", "#zoom-in", "#right", "#zoom-out", "#left"):
        view.click(button)
        buttons.append(times(view))
    view.click("#fit")
    assert times(view) == whole
    for key in ("+", "+", "ArrowRight", "-", "ArrowLeft"):
        view.keyboard.press(key)
        keys.append(times(view))
    view.keyboard.press("Home")
    assert times(view) == whole
    assert keys == buttons
    assert len(set(buttons)) == 5


def test_keys_walk_along_a_rank_and_back_along_what_was_waited_for(view: Any) -> None:
    lowered, _ = PLAN.check()
    x, y = place_of(view, 1, node_of(PLAN, "F1.0"))
    view.mouse.click(x, y)
    assert view.locator("#said").inner_text().startswith("F1.0: forward")
    view.keyboard.press(".")
    second = lowered.ops[1][1]
    assert tip(view).startswith(f"{second}:")
    view.keyboard.press(",")
    view.keyboard.press("w")
    assert tip(view).startswith("F0.0:")
    for _ in range(8):
        view.keyboard.press("+")
    settle(view)
    assert view.locator("#tip").is_hidden()  # out of sight
    view.keyboard.press("0")
    settle(view)
    assert tip(view).startswith("F0.0:")
    view.keyboard.press("Escape")
    assert view.locator("#tip").is_hidden()


def test_a_schedule_that_takes_no_time_can_be_opened(browser: Any, tmp_path: Path) -> None:
    thin_page(tmp_path / "page.html", 0, 0, 3)
    with opened(browser, tmp_path / "page.html") as view:
        for key in (".", "w", "t", "+", "0"):
            view.keyboard.press(key)
        settle(view)
        assert view.locator("#tip").is_hidden()


def test_transfers_are_shown_when_asked_for_and_told_of(view: Any) -> None:
    assert view.evaluate("viewer.moves.length") == 0
    view.keyboard.press("t")
    settle(view)
    count = sum(len(plan.check()[0].transfers) for plan in (PLAN, OTHER))
    assert view.evaluate("viewer.moves.length") == count
    x, y = view.evaluate(
        """() => {
            const { from, to } = viewer.moves[3];
            const frame = viewer.canvas.getBoundingClientRect();
            return [0, 1].map((i) => (from[i] + to[i]) / 2 + [frame.left, frame.top][i]);
        }"""
    )
    view.mouse.move(x, y)
    assert "bytes" in tip(view)
    assert view.get_attribute("#transfers", "aria-pressed") == "true"


def test_rows_of_a_rank_stand_under_each_other_if_asked_for(view: Any) -> None:
    order = "viewer.layout.rows.map((row) => [row.chart.number, row.rank])"
    ranks = range(4)
    assert view.evaluate(order) == [[chart, rank] for chart in (0, 1) for rank in ranks]
    view.click("#by-rank")
    settle(view)
    assert view.evaluate(order) == [[chart, rank] for rank in ranks for chart in (0, 1)]


def pixels(view: Any, x: float, y: float, width: int) -> list[list[int]]:
    """The red, green and blue of a run of pixels of the canvas."""
    data = view.evaluate(
        "([x, y, width]) => [...viewer.context.getImageData(x, y, width, 1).data]", [x, y, width]
    )
    return [data[i : i + 3] for i in range(0, len(data), 4)]


def hexadecimal(colour: list[int]) -> str:
    return "#" + "".join(f"{x:02x}" for x in colour)


def test_an_op_has_the_colour_of_its_kind_and_a_later_stage_is_lighter(view: Any) -> None:
    tops = []
    for token in ("F0.0", "F7.0"):
        node = node_of(PLAN, token)
        x = view.evaluate(f"viewer.xOf(viewer.charts[1].start[{node}]) + 3")
        y = view.evaluate("viewer.middleOf(viewer.charts[1], 0) - ROWS[viewer.row] / 2 + 2")
        tops.append(pixels(view, round(x), round(y), 1)[0])
    assert hexadecimal(tops[0]) == COLOURS[OpKind.F]
    assert linear(hexadecimal(tops[1])).sum() > linear(hexadecimal(tops[0])).sum() + 0.2


def test_the_theme_follows_the_system_and_the_button(browser: Any, file: Path) -> None:
    papers = []
    for scheme in ("light", "dark"):
        with opened(browser, file, color_scheme=scheme) as view:
            papers.append(sum(pixels(view, 2, 40, 1)[0]))
            view.click("#theme")
            settle(view)
            papers.append(sum(pixels(view, 2, 40, 1)[0]))
    light, darkened, dark, lightened = papers
    assert light == lightened > 600
    assert dark == darkened < 150


def test_everything_is_drawn_for_the_printer_in_light_colours(browser: Any, file: Path) -> None:
    with opened(browser, file, color_scheme="dark") as view:
        before = view.evaluate("[viewer.canvas.width, viewer.usPerPixel]")
        view.evaluate("viewer.resizeRows(9)")
        view.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert view.evaluate("viewer.canvas.height === 2 * viewer.layout.height")
        assert view.evaluate("viewer.visible.length") == 8
        assert sum(pixels(view, 2, 100, 1)[0]) > 600
        view.evaluate("dispatchEvent(new Event('afterprint'))")
        assert view.evaluate("[viewer.canvas.width, viewer.usPerPixel]") == pytest.approx(before)
        assert sum(pixels(view, 2, 40, 1)[0]) < 150


def test_the_table_says_what_the_picture_shows(view: Any) -> None:
    view.click("#show-table")
    rows = view.locator("#tables table").nth(1).locator("tr")
    assert rows.count() == 5
    _, timeline = PLAN.check()
    busy = timeline.work_us[2] / 1000
    assert f"{busy:.4g} ms" in rows.nth(3).inner_text()


def thin_page(path: Path, forward_us: int, backward_us: int, num_micro_batches: int) -> None:
    """One rank that runs F and BW in turns, with no idle time."""
    costs = uniform_costs(
        1, forward_us=forward_us, backward_input_us=backward_us, backward_weight_us=0
    )
    ops = tuple(Op(kind, 0, j) for j in range(num_micro_batches) for kind in (OpKind.F, OpKind.BW))
    schedule = Schedule(Placement.linear(1), num_micro_batches, (ops,))
    _, timeline = verify(schedule, costs)
    chart = Chart("thin", "", TimedSchedule.of_timeline(timeline), ("layer 0",))
    path.write_text(page("thin", [chart]), encoding="utf-8")


@pytest.mark.parametrize("num_micro_batches", [500, 760, 1100, 20_000])
def test_columns_of_thin_ops_have_their_mean_colour_without_beats(
    browser: Any, tmp_path: Path, num_micro_batches: int
) -> None:
    # About 2.1, 1.4, 1 and 0.05 pixels for an F and a BW: 3 of 10 µs are F. Near 2 pixels, columns
    # that have just their own mean would alternate, and beat with the ops.
    thin_page(tmp_path / "page.html", 3, 7, num_micro_batches)
    with opened(browser, tmp_path / "page.html") as view:
        view.keyboard.press("c")
        settle(view)
        row = "viewer.layout.rows[0].y + 4"
        found = [
            linear(hexadecimal(colour)) for colour in pixels(view, 130, view.evaluate(row), 1024)
        ]
    forward, backward = (linear(COLOURS[kind]) for kind in (OpKind.F, OpKind.BW))
    mean = 0.3 * forward + 0.7 * backward
    assert sum(found) / len(found) == pytest.approx(mean, abs=0.01)
    assert max(abs(column - mean).max() for column in found) < 0.1


@pytest.fixture
def choice(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """A page with a table and a plot of four schedules, of which the first is shown."""
    names = ("1f1b", "zb-h1", "zb-h2", "gpipe")
    charts, marks = [], []
    for name in names:
        plan = make_plan(name)
        charts.append(Chart.planned(name, plan, plan.check()[1]))
        marks.append(Mark(name, plan.claim.makespan_us, max(plan.claim.peak_bytes)))
    rows = (*((name, str(mark.value_us)) for name, mark in zip(names, marks, strict=True)), ("x",))
    svg = svg_text(pareto_picture(Pareto("four", "makespan", tuple(marks))))
    menu = ScheduleMenu(("schedule", "µs"), rows, names, svg, (0,))
    (tmp_path / "page.html").write_text(page("four", charts, menu=menu), encoding="utf-8")
    with opened(browser, tmp_path / "page.html") as shown:
        yield shown


def titles(view: Any) -> list[str]:
    found: list[str] = view.evaluate("viewer.charts.map((chart) => chart.title)")
    return found


def test_a_click_on_a_row_or_a_dot_shows_that_schedule_and_another_hides_it(choice: Any) -> None:
    assert titles(choice) == ["1f1b"]
    choice.click("#choice button:text-is('zb-h2')")
    choice.click("circle[data-name='zb-h1']")
    choice.locator("#choice tr.shown").nth(2).wait_for()
    assert titles(choice) == ["1f1b", "zb-h2", "zb-h1"]
    assert choice.locator("#choice tr.shown").count() == 3
    assert choice.locator("circle.shown").count() == 3
    choice.click("#choice button:text-is('1f1b')")
    choice.locator("#choice tr.shown button:text-is('1f1b')").wait_for(state="detached")
    assert titles(choice) == ["zb-h2", "zb-h1"]
    settle(choice)
    assert choice.evaluate("viewer.layout.rows.length") == 8


def test_the_dot_of_the_row_under_the_pointer_is_marked(choice: Any) -> None:
    choice.hover("#choice tr:has(button:text-is('zb-h2'))")
    pointed = choice.locator("#plot .pointed")
    assert pointed.count() == 1
    assert pointed.get_attribute("data-name") == "zb-h2"
    choice.hover("#canvas")
    assert choice.locator("#plot .pointed").count() == 0


def test_a_row_without_a_chart_cannot_be_chosen_and_one_schedule_stays(choice: Any) -> None:
    assert choice.locator("#choice button").count() == 4
    choice.click("#choice button:text-is('1f1b')")
    settle(choice)
    assert titles(choice) == ["1f1b"]


def test_the_choice_can_be_folded_away(choice: Any) -> None:
    width = choice.evaluate("viewer.width")
    choice.keyboard.press("s")
    settle(choice)
    assert choice.locator("#menu").is_hidden()
    assert choice.evaluate("viewer.width") > width + 300


def test_all_labels_have_one_form_which_the_legend_names(view: Any) -> None:
    forms = {"F1.2: stage 1, micro-batch 2": 0, "F2: micro-batch 2": 1, "numbers: micro-batches": 2}
    seen = set()
    for zoom in (1, 2, 4, 8):
        view.evaluate(f"viewer.usPerPixel = viewer.fullUsPerPixel / {zoom}, viewer.drawNow()")
        written = view.inner_text("#numbers")
        if written:
            assert forms[written] == view.evaluate("viewer.raster.form")
            seen.add(written)
    assert len(seen) > 1


def test_the_legend_has_memory_while_it_is_shown(view: Any) -> None:
    assert "static memory" in view.inner_text("#legend")
    assert "activations" in view.inner_text("#legend")
    assert "memory limit" not in view.inner_text("#legend")  # these plans have none
    view.keyboard.press("m")
    assert "static memory" not in view.inner_text("#legend")


def test_figures_are_wrapped_in_a_narrow_window(browser: Any, file: Path) -> None:
    with opened(browser, file, viewport={"width": 600, "height": 500}) as view:
        lines = view.evaluate("viewer.overlays.linesOfHead(viewer.charts[0])")
        assert len(lines) > 1
        assert " ".join(lines) == view.evaluate("viewer.charts[0].note")
        first = view.evaluate("viewer.layout.rows[0].y")
        assert first == view.evaluate(f"AXIS + HEAD + NOTE * {len(lines) - 1}")


@pytest.mark.parametrize(
    ("begin_us", "step_us", "title", "labels"),
    [
        (0, 200, "time, ms", ["0", "0.2", "0.4"]),
        (4_953_000, 200, "4.953 s + …, ms", ["0", "0.2", "0.4"]),
        (10_260_000, 20_000, "10.2 s + …, ms", ["60", "80", "100"]),
    ],
)
def test_ticks_have_few_digits(
    view: Any, begin_us: int, step_us: int, title: str, labels: list[str]
) -> None:
    axis = view.evaluate(f"timeAxis({begin_us}, {begin_us + 8 * step_us}, {step_us})")
    assert axis["title"] == title
    assert [label for _, label in axis["ticks"][:3]] == labels
