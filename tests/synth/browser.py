"""A page of charts in a headless Chromium, for tests that are skipped where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that Playwright drives; the test is skipped where one of both is missing."""
    reason = "needs the package playwright (pip install 'synth-pipeline[browser]')"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"needs one of {', '.join(NAMES)}")
    with api.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, **settings: Any) -> Iterator[Any]:
    """A page from disk, drawn; any error, and any request but that of the file, is a failure."""
    wrong: list[str] = []
    settings = {"viewport": {"width": 1200, "height": 700}, **settings}
    page = browser.new_page(**settings)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.extend(_errors(message)))
    page.on("request", lambda request: wrong.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready-ms]", state="attached", timeout=120_000)
    yield page
    page.close()
    assert wrong == [path.as_uri()], wrong


def _errors(message: Any) -> list[str]:
    return [message.text] if message.type == "error" else []
