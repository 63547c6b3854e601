"""The page of `synth ui` in a real browser: a first visit, step by step."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.estimates.model_config import known_model
from synth.schedule.files.plan_file import Plan
from tests.synth.browser import chromium
from tests.synth.ui_pages import served
from tests.synth.ui_visit import Visit, small


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.slow
def test_a_first_visit_from_an_own_config_to_a_saved_plan(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(known_model("llama3-8b").config))
    with served(tmp_path) as url:
        visit = Visit(browser, url, accept_downloads=True)
        page = visit.page
        # 1. Two published schedules are there at once.
        assert visit.titles() == ["1f1b", "zb-v"]
        # 2. The own config, on a device with two ranks of tensor parallelism.
        visit.choose("#model", "config.json")
        visit.choose("#device", "a100")
        visit.set("#tp", 2)
        # 3. The pipeline.
        visit.set("#ranks", 4)
        visit.set("#micro_batches", 6)
        visit.choose("#placement", "linear")
        # 4. Another schedule below.
        visit.choose("#lower-schedule", "zb-h1")
        assert visit.titles() == ["1f1b", "zb-h1"]
        # 5. A boundary of the partition, dragged and moved by a key.
        handle = page.locator("#partition .handle").first
        box = handle.bounding_box()
        middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        visit.redrawn(lambda: visit.drag(middle, (middle[0] + 30, middle[1])))
        dragged = page.evaluate("page.state.partition")
        assert dragged[0] > dragged[1]
        visit.redrawn(lambda: handle.press("ArrowLeft"))
        assert page.evaluate("page.state.partition")[0] == dragged[0] - 1
        # 6. A memory limit below the peak: the verifier says where it is exceeded.
        visit.choose("#limit-kind", "size")
        half = page.evaluate("page.form.peakBytes / 2e9")
        visit.set("#limit-size", f"{half:.3f}")
        assert "memory limit" in visit.text("#verdicts")
        visit.choose("#limit-kind", "none")
        assert "memory limit" not in visit.text("#verdicts")
        # 7. Solve, and stop.
        page.fill("#time_limit", "30")
        page.press("#time_limit", "Tab")

        def stop_when_there_is_a_plan() -> None:
            visit.wait(lambda: "bound" in visit.text("#progress"))
            page.evaluate("byId('stop').click()")  # nothing happens if the search has ended

        visit.searched(lambda: page.click("#solve"), stop_when_there_is_a_plan)
        visit.wait(lambda: "plan:found-" in page.evaluate("page.state.lower"))
        visit.wait(lambda: not page.evaluate("page.isDrawing"))
        # 8. The explanation in words.
        visit.tab("explain")
        visit.wait(lambda: "what holds it back is" in visit.words("#explanation"))
        # 9. The files.
        visit.tab("save")
        plan = Plan.from_json(visit.saved("plan").decode())
        plan.check()
        assert (plan.num_ranks, plan.num_micro_batches) == (4, 6)
        assert visit.saved("csv")
        # 10. The command that makes the same; and the page as it was, loaded again.
        visit.tab("command")
        assert "synth estimate config.json --device a100 --tp 2" in visit.text("#tab-command")
        titles = visit.titles()
        page.reload()
        visit.wait(lambda: visit.drawn() >= 1)
        assert visit.titles() == titles
        assert page.input_value("#ranks") == "4"
        visit.close()


@pytest.mark.slow
def test_an_op_is_dragged_before_another_and_the_verifier_says_what_that_means(
    browser: Any, tmp_path: Path
) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, tab="order"))
        page = visit.page
        page.click("#edit")
        # A W that runs later: a new time.
        start, end = visit.op_at("W0.0"), visit.op_at("B0.5")
        visit.redrawn(lambda: visit.drag(start, end))
        assert len(page.evaluate("page.state.moves")) == 1
        assert visit.text("#order-verdict").startswith("1 move: ")
        assert visit.titles() == ["1f1b", "by hand"]
        # The same from the address.
        page.reload()
        visit.wait(lambda: visit.drawn() >= 1)
        assert visit.titles() == ["1f1b", "by hand"]
        visit.redrawn(lambda: page.click("#reset"))
        assert visit.titles() == ["1f1b", "zb-h1"]
        # A backward before its forward: it goes back, with the words of the verifier.
        page.click("#edit")
        start, end = visit.op_at("B0.0"), visit.op_at("F0.0")
        visit.drag(start, (end[0] - 4, end[1]))
        visit.wait(lambda: "this breaks: rank 0" in visit.text("#order-verdict"))
        assert page.evaluate("page.state.moves") == []
        visit.close()


@pytest.mark.slow
def test_the_limit_is_dragged_by_its_line(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, mem_limit="40GB"))
        x, y, bytes_ = visit.page.evaluate(
            """() => {
                const row = viewer.visible[0];
                const line = page.limit.lineOf(row);
                const frame = viewer.canvas.getBoundingClientRect();
                return [frame.left + 300, frame.top + line.y, row.chart.capBytes[0]];
            }"""
        )
        visit.redrawn(lambda: visit.drag((x, y), (x, y + 3)))
        assert visit.page.evaluate("viewer.charts[0].capBytes[0]") < bytes_
        assert "mem_limit=" in visit.page.url
        visit.close()


@pytest.mark.slow
def test_points_of_the_curve_open_their_plans(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(
            browser, small(url, ranks="2", micro_batches="3", time_limit="1", tab="curve")
        )
        page = visit.page
        page.fill("#points", "3")
        visit.searched(lambda: page.click("#trace"))
        points = page.locator("#curve .point")
        visit.wait(lambda: points.count() >= 2)
        ticks = page.locator("#curve text").all_text_contents()
        assert len(ticks) > 5 and all(len(tick.split()[0]) <= 4 for tick in ticks)  # round ones
        name = points.first.get_attribute("data-plan")
        visit.redrawn(lambda: points.first.press("Enter"))
        assert page.evaluate("page.state.lower") == f"plan:{name}"
        visit.close()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_at_800_pixels_nothing_is_cut_off(browser: Any, tmp_path: Path, theme: str) -> None:
    with served(tmp_path) as url:
        size = {"width": 800, "height": 800}
        visit = Visit(
            browser, small(url, sliders="8,1,1,1,1,1,1"), viewport=size, color_scheme=theme
        )
        page = visit.page
        assert page.evaluate("document.documentElement.scrollWidth") <= 800
        wide = page.evaluate("byId('menu').scrollWidth - byId('menu').clientWidth")
        assert wide <= 0
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        visit.close()


@pytest.mark.slow
def test_at_420_pixels_settings_are_above_the_chart(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url), viewport={"width": 420, "height": 800})
        page = visit.page
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        for name in ("menu", "scroller"):
            assert page.evaluate(f"byId('{name}').getBoundingClientRect().width") == 420
        visit.close()


@pytest.mark.slow
def test_keys_of_the_chart_do_not_reach_into_fields(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url))
        page = visit.page
        page.focus("#ranks")
        page.keyboard.press("m")
        assert page.evaluate("viewer.show.memory") is True
        page.focus("#canvas")
        page.keyboard.press("m")
        assert page.evaluate("viewer.show.memory") is False
        visit.close()


@pytest.mark.slow
def test_a_large_pipeline_opens(browser: Any, tmp_path: Path) -> None:
    state = {"ranks": "64", "micro_batches": "512", "sliders": "64,10,10,10,100,10,400"}
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, **state))
        assert visit.page.evaluate("viewer.charts.length") == 2
        visit.close()


@pytest.mark.slow
def test_a_plan_that_the_command_names_is_drawn_with_its_limit(
    browser: Any, tmp_path: Path
) -> None:
    plan = synth.simulate(
        "zb-h1", "zb-1.5b-p8-m24", ranks=4, micro_batches=6, mem_limit=60_123_456_789
    )
    plan.save(tmp_path / "plan.json")
    with served(tmp_path, str(tmp_path / "plan.json")) as url:
        visit = Visit(browser, url)
        assert visit.titles() == ["1f1b", "zb-h1"]
        caps = visit.page.evaluate("viewer.charts.map((chart) => chart.capBytes[0])")
        assert caps == [60_123_456_789] * 2
        assert visit.page.input_value("#ranks") == "4"
        visit.close()
