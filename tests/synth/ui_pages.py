"""Servers of `synth ui` for tests: an application for a client, and a page for a browser."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs pip install 'synth-pipeline[ui]'")
pytest.importorskip("httpx2", reason="needs the client of Starlette's tests")

from starlette.testclient import TestClient

from synth.cli.answer.explain import explanation_text
from synth.ui.limits import LOCAL, Limits
from synth.ui.models import Models
from synth.ui.serve import Address, Page
from synth.ui.server import Service

TOKEN = "a-token-of-a-test"
# Small enough for every answer to come at once.
SETTING = {"ranks": 4, "micro_batches": 6, "placement": "linear"}

# Too large and too tight to be proven.
LONG = {
    "ranks": 8,
    "micro_batches": 48,
    "placement": "v",
    "mem_limit": "20GB",
    "recompute": "auto",
    "time_limit": 600,
}


class Client:
    """Asks a server as the page does."""

    def __init__(self, folder: Path, limits: Limits = LOCAL, token: str = TOKEN) -> None:
        self.service = Service(Models(folder, limits), explanation_text)
        self.root = f"/{token}" if token else ""
        app = self.service.application(token, {"testserver"})
        self.http = TestClient(app, raise_server_exceptions=False)

    def post(self, path: str, body: Any) -> Any:
        """The answer to a request, with its status."""
        return self.http.post(f"{self.root}/{path}", json=body)

    def draw(self, *sources: dict[str, Any], **setting: Any) -> Any:
        """What is drawn of some schedules."""
        body = {"setting": {**SETTING, **setting}, "sources": sources}
        answered = self.post("draw", body)
        assert answered.status_code == 200, answered.text
        return answered.json()

    def followed(self, job: str) -> list[dict[str, Any]]:
        """All steps of a search, up to its end."""
        with self.http.stream("GET", f"{self.root}/jobs/{job}") as answered:
            assert answered.status_code == 200
            assert answered.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in answered.iter_lines() if line.startswith("data: ")]
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@contextmanager
def served(folder: Path, given: str | None = None, limits: Limits = LOCAL) -> Iterator[str]:
    """The address of a page that is served until the end."""
    page, stop = Page(folder, limits, explanation_text, Address(), given), threading.Event()
    thread = threading.Thread(target=page.run, args=(stop,))
    thread.start()
    try:
        yield page.url
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
