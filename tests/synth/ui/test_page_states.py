"""The page of `synth ui` in a real browser: addresses, searches and plans from elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.profile.layer_times import LayerTimes
from tests.synth.browser import chromium
from tests.synth.ui_pages import LONG, served
from tests.synth.ui_visit import Visit, small


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.mark.slow
def test_a_search_is_stopped_after_the_page_was_loaded_again(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, **LONG))
        page = visit.page
        page.click("#solve")
        visit.wait(lambda: "bound" in visit.text("#progress"))
        page.reload()
        visit.wait(lambda: page.is_enabled("#stop"))
        other = Visit(browser, small(url))
        other.wait(lambda: other.page.is_enabled("#stop"))
        visit.searched(lambda: other.page.click("#stop"))
        visit.wait(lambda: "plan:found-" in page.evaluate("page.state.lower"))
        other.wait(lambda: not other.page.is_enabled("#stop"))
        assert "plan:" not in other.page.evaluate("page.state.lower")
        other.close()
        visit.close()


@pytest.mark.slow
def test_a_schedule_that_is_a_search_is_drawn_after_the_other(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, placement="v", lower="zb-v"))
        page = visit.page
        page.route("**/draw", lambda route: quick_only(route))
        visit.redrawn(lambda: page.select_option("#lower-schedule", "zb-v-limit"))
        assert visit.titles() == ["1f1b"]
        assert "drawn when it is ready" in visit.text("[data-slot=lower]")
        assert visit.text("#explanation") == ""
        page.unroute("**/draw")
        visit.redrawn(lambda: page.evaluate("page.drawRest()"))
        assert visit.titles() == ["1f1b", "zb-v-limit"]
        assert "drawn when it is ready" not in visit.text("[data-slot=lower]")
        visit.close()


@pytest.mark.slow
def test_a_search_says_why_it_ended_in_words(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url))
        state = {"elapsed_s": 1, "gap": 0.1, "bound_holds_for": "this partition"}
        limit = "the server's limit of 30 s"
        for stopped_by, because, words in [
            ("interrupt", limit, limit),
            ("interrupt", "stopped by hand", "stopped by hand"),
            ("time limit", limit, limit),
            ("time limit", "", "time limit"),
            ("gap", "", "close enough to the bound"),
        ]:
            own = {"stopped_by": stopped_by, "stopped_because": because}
            visit.page.evaluate(
                """async (state) => {
                    const place = new URL("static/results.js", document.baseURI);
                    (await import(place)).showProgress(state);
                }""",
                {**state, **own},
            )
            assert f"ended: {words}; the bound" in visit.text("#progress")
        visit.close()


@pytest.mark.slow
def test_a_plan_that_was_found_before_a_reload_has_a_name(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, lower="plan:found-0123456789abcdef"))
        assert "found before" in visit.text("#lower-schedule")
        visit.close()


def quick_only(route: Any) -> None:
    """Answer only what is drawn at once; the rest is refused in words."""
    if route.request.post_data_json.get("is_quick"):
        route.continue_()
    else:
        route.fulfill(status=400, json={"error": "not now"})


@pytest.mark.slow
def test_moves_made_during_a_search_stay(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, **LONG))
        page = visit.page

        def move_and_stop() -> None:
            visit.wait(lambda: page.is_enabled("#stop"))
            visit.redrawn(lambda: page.evaluate("page.change({ moves: [[0, 0, 0]] })"))
            page.click("#stop")

        visit.searched(lambda: page.click("#solve"), move_and_stop)
        assert page.evaluate("[page.state.lower, page.state.moves.length]") == ["zb-h1", 1]
        assert page.locator("#lower-schedule option", has_text="found in").count() <= 1
        visit.close()


@pytest.mark.slow
def test_what_is_wrong_in_an_address_is_named_and_left_out(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        wrong = {"partition": "6,x", "moves": "0.1_a", "toString": "1", "tp": "-2"}
        visit = Visit(browser, small(url, **wrong))
        page = visit.page
        for name in wrong:
            assert f"{name}=" in visit.text("#dropped")
        assert visit.titles() == ["1f1b", "zb-h1"]
        # A name is cut short, and one schedule is always drawn.
        page.evaluate("location.hash = 'lower=none&upper=none&' + 'a'.repeat(5000)")
        visit.wait(lambda: "lower=none, aaa" in visit.text("#dropped"))
        visit.wait(lambda: visit.titles() == ["zb-v"])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # What only the server can judge has a way out, too.
        page.evaluate("location.hash = 'placement=spiral'")
        visit.wait(lambda: "spiral" in visit.text("#message"))
        assert page.locator("#lower-schedule option").count() > 5
        visit.redrawn(lambda: page.click("#start-over"))
        assert visit.titles() == ["1f1b", "zb-v"]
        assert not page.is_visible("#way-out")
        visit.close()


@pytest.mark.slow
def test_a_plan_of_a_model_that_is_not_here_is_shown_alone(browser: Any, tmp_path: Path) -> None:
    times = {"forward_us": 10, "backward_input_us": 10, "backward_weight_us": 10}
    profile = synth.Profile.from_times("own", [LayerTimes(name="a", count=9, **times)])
    path = tmp_path / "plan.json"
    synth.simulate("zb-h1", profile, ranks=4, micro_batches=6).save(path)
    with served(tmp_path, str(path)) as url:
        visit = Visit(browser, url)
        visit.wait(lambda: visit.titles() == ["zb-h1"])
        assert "9 layers in 4 stages" in visit.text("#sizes")
        assert "plan for own; settings have" in visit.words("#verdicts")
        assert "against the upper" not in visit.text("#verdicts")
        visit.close()


@pytest.mark.slow
def test_a_plan_of_other_micro_batches_is_not_compared(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    synth.simulate("zb-h1", "zb-1.5b-p8-m24", ranks=4, micro_batches=6).save(path)
    with served(tmp_path, str(path)) as url:
        visit = Visit(browser, url)
        assert "against the upper" in visit.text("#verdicts")
        visit.set("#micro_batches", 20)
        assert "against the upper" not in visit.text("#verdicts")
        assert "plan for m = 6; settings have m = 20" in visit.words("#verdicts")
        visit.close()


@pytest.mark.slow
def test_the_time_before_the_moves_is_that_of_the_same_schedule(
    browser: Any, tmp_path: Path
) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, tab="order"))
        visit.redrawn(lambda: visit.page.evaluate("page.change({ objective: 'period' })"))
        change = "page.change({ micro_batches: 9, lower: '1f1b', moves: [[0, 0, 0]] })"
        visit.redrawn(lambda: visit.page.evaluate(change))
        before = visit.page.evaluate("formatUs(page.baseUs)")
        now = visit.page.evaluate("formatUs(page.answer.drawn[1].makespan_us)")
        assert before == now
        assert visit.text("#order-verdict") == f"1 move: {now}, {before} before the moves"
        visit.close()


@pytest.mark.slow
def test_in_a_low_window_all_settings_can_be_reached(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url), viewport={"width": 800, "height": 600})
        assert visit.page.evaluate("byId('menu').clientHeight") >= 340
        for place in ("#limit-kind", "#link-kind", "#tab-explain"):
            visit.page.locator(place).scroll_into_view_if_needed()
            assert visit.page.locator(place).is_visible()
        visit.close()


# Puts the second op of rank 0 of the lower schedule first, as the keys do.
_SWAP = """() => {
    const chart = page.order.target();
    viewer.selected = { chart, node: chart.opsOf(0)[0] };
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: ">", bubbles: true }));
}"""


@pytest.mark.slow
def test_an_op_moved_while_a_search_draws_takes_the_schedule_drawn(
    browser: Any, tmp_path: Path
) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url, tab="order", **LONG))
        page = visit.page

        def swap_and_stop() -> None:
            visit.wait(lambda: page.evaluate("page.isOfSearch"))
            assert "the best of the search so far" in visit.text("#verdicts")
            page.click("#edit")
            page.evaluate(_SWAP)
            visit.wait(lambda: visit.text("#order-verdict"))
            visit.wait(lambda: not page.evaluate("page.isDrawing || page.isOfSearch"))
            assert page.is_enabled("#stop")
            page.click("#stop")

        visit.searched(lambda: page.click("#solve"), swap_and_stop)
        assert page.evaluate("page.state.lower").startswith("plan:found-")
        chosen = page.locator("#lower-schedule option:checked")
        assert chosen.inner_text() == "taken from the search"
        visit.close()


@pytest.mark.slow
def test_the_whole_time_stays_in_sight_without_the_settings(browser: Any, tmp_path: Path) -> None:
    with served(tmp_path) as url:
        visit = Visit(browser, small(url), viewport={"width": 800, "height": 600})
        page = visit.page
        page.click("#show-menu")
        visit.settle()
        assert page.evaluate("viewer.usPerPixel === viewer.fullUsPerPixel")
        page.evaluate("viewer.zoom(0.5)")
        zoomed = page.evaluate("viewer.usPerPixel")
        page.click("#show-menu")
        visit.settle()
        assert page.evaluate("viewer.usPerPixel") == zoomed
        visit.close()
