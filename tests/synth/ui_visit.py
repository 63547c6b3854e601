"""A visit of the page in a real browser."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Far more than any step takes: nothing here depends on how fast the machine is.
PATIENCE_S = 180
# Polls without a change after which a page counts as still.
STILL_POLLS = 8


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
        self.settle()

    def settle(self) -> None:
        """Wait until nothing on the page moves: what is explained comes after what is drawn."""
        seen: list[Any] = []

        def is_still() -> bool:
            seen.append(
                self.page.evaluate(
                    """() => [
                        JSON.stringify(viewer.canvas.getBoundingClientRect()),
                        document.documentElement.outerHTML.length,
                    ]"""
                )
            )
            return len(seen) > STILL_POLLS and all(one == seen[-1] for one in seen[-STILL_POLLS:])

        self.wait(is_still)

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
        self.settle()

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
        self.settle()
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


def small(url: str, **more: object) -> str:
    """An address with a small pipeline."""
    state = {"ranks": "4", "micro_batches": "6", "placement": "linear", "lower": "zb-h1", **more}
    return f"{url}#" + "&".join(f"{name}={value}" for name, value in state.items())
