"""The page of `synth ui` in a real browser: a first visit, step by step."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import synth
from synth.estimates.model_config import known_model
from synth.schedule.files.plan_file import Plan
from tests.synth.browser import chromium
from tests.synth.ui_pages import served

# Far more than any step takes: nothing here depends on how fast the machine is.
PATIENCE_S = 180


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


class Visit:
    """A page that is used as a visitor does; any error of it, and any other host, is a failure."""

    def __init__(self, browser: Any, url: str, **settings: Any) -> None:
        self.url, self.wrong = url, list[str]()
        settings = {"viewport": {"width": 1280, "height": 800}, **settings}
        self.page = browser.new_page(**settings)
        self.page.set_default_timeout(1000 * PATIENCE_S)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", lambda request: self._note_request(request.url))
        self.page.goto(url)
        self.wait(lambda: self.drawn() >= 1)

    def _note(self, message: Any) -> None:
        # A refusal of the server is an error on the console, too; the page shows it in words.
        if message.type == "error" and "status of 4" not in message.text:
            self.wrong.append(message.text)

    def _note_request(self, url: str) -> None:
        root = self.url.partition("#")[0]
        if not url.startswith((root, "data:", "blob:")):
            self.wrong.append(url)

    def wait(self, is_so: Callable[[], Any]) -> None:
        """Wait until something is so; the page's policy forbids what Playwright would wait with."""
        until = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until, (self.text("#message"), self.wrong)
            assert not self.wrong, self.wrong
            time.sleep(0.05)

    def count(self, what: str) -> int:
        return int(self.page.evaluate(f"document.documentElement.dataset.{what} || 0"))

    def drawn(self) -> int:
        """How often the page has drawn an answer."""
        return self.count("drawn")

    def searched(self, act: Callable[[], Any], begun: Callable[[], Any] = lambda: None) -> None:
        """Start a search, do something when it is running, and wait until it has ended."""
        before = self.count("searched")
        act()
        begun()
        self.wait(lambda: self.count("searched") > before)

    def redrawn(self, act: Callable[[], Any]) -> None:
        """Do something, and wait until the page has drawn what follows."""
        before = self.drawn()
        act()
        self.wait(lambda: self.drawn() > before and not self.page.evaluate("page.isDrawing"))

    def text(self, place: str) -> str:
        found: str = self.page.locator(place).inner_text()
        return found

    def words(self, place: str) -> str:
        """The text of a place, whose lines end where they like."""
        return " ".join(self.text(place).split())

    def titles(self) -> list[str]:
        found: list[str] = self.page.evaluate("viewer.charts.map((chart) => chart.title)")
        return found

    def set(self, place: str, value: object) -> None:
        """Fill a field, and leave it."""
        self.redrawn(lambda: (self.page.fill(place, str(value)), self.page.press(place, "Tab")))

    def choose(self, place: str, value: str) -> None:
        self.redrawn(lambda: self.page.select_option(place, value))

    def tab(self, name: str) -> None:
        if self.page.get_attribute(f"[data-tab={name}]", "aria-pressed") != "true":
            self.page.click(f"[data-tab={name}]")

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        mouse = self.page.mouse
        mouse.move(*start)
        mouse.down()
        mouse.move(*end, steps=6)
        mouse.up()

    def op_at(self, token: str) -> tuple[float, float]:
        """The middle of an op of the lower schedule, in the window."""
        x, y = self.page.evaluate(
            """(token) => {
                const chart = viewer.charts.find((one) => one.number === 1);
                let op = 0;
                while (viewer.words.token(chart, op) !== token) op++;
                viewer.bring(chart, op);
                viewer.drawNow();
                const frame = viewer.canvas.getBoundingClientRect();
                const x = viewer.xOf(chart.start[op] + chart.duration[op] / 2);
                return [frame.left + x, frame.top + viewer.middleOf(chart, chart.rankOf(op))];
            }""",
            token,
        )
        return x, y

    def saved(self, kind: str) -> bytes:
        """The file that a button saves."""
        with self.page.expect_download() as started:
            self.page.click(f"[data-save={kind}]")
        return Path(started.value.path()).read_bytes()

    def close(self) -> None:
        self.page.close()
        assert self.wrong == []


def small(url: str, **more: str) -> str:
    """An address with a small pipeline."""
    state = {"ranks": "4", "micro_batches": "6", "placement": "linear", "lower": "zb-h1", **more}
    return f"{url}#" + "&".join(f"{name}={value}" for name, value in state.items())


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
