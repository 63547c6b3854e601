"""`synth ui`: its address, its end, and what it refuses."""

import asyncio
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.cli.conftest import NAME, Synth

pytest.importorskip("starlette", reason="needs pip install 'synth-pipeline[ui]'")
pytest.importorskip("uvicorn", reason="needs pip install 'synth-pipeline[ui]'")

from synth.schedule.files.plan_file import Plan
from synth.ui import serve
from synth.ui.command_line import commands, curve_commands
from synth.ui.drawing import Drawings
from synth.ui.limits import LOCAL, Limits, public
from synth.ui.models import Models
from synth.ui.serve import Address
from synth.ui.setting import PipelineSetting, ShownSchedule

ROOT = Path(__file__).resolve().parents[2]
SYNTH = [sys.executable, "-c", "import synth.cli; synth.cli.main()"]


# The page, with draws that never end; the first one is announced.
STUCK = r"""
import os, threading
from synth.ui.drawing import Drawings
def stuck(*given):
    os.write(1, b"drawing\n")
    threading.Event().wait()
Drawings.of = stuck
import synth.cli
synth.cli.main()
"""


@contextmanager
def running(program: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves the page, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, "ui", "--no-browser"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", url)
        yield process, url
    finally:
        process.kill()
        process.wait(60)


def end_by_ctrl_c(process: "subprocess.Popen[str]", folder: Path) -> None:
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert "Traceback" not in told
    assert os.listdir(folder) == []


def test_the_page_is_served_on_loopback_until_ctrl_c(tmp_path: Path) -> None:
    with running(SYNTH[-1], tmp_path) as (process, url):
        with urlopen(url, timeout=120) as answered:
            assert b"synth ui" in answered.read()
        with pytest.raises(HTTPError, match="403"):
            urlopen(url.rstrip("/")[:-3] + "/start", timeout=120)
        end_by_ctrl_c(process, tmp_path)


def draw(url: str) -> None:
    body = json.dumps({"setting": {}, "sources": [{"schedule": "1f1b"}]}).encode()
    with suppress(OSError, HTTPException):
        urlopen(Request(url + "draw", data=body), timeout=120).close()


def test_ctrl_c_ends_a_page_whose_draws_are_stuck(tmp_path: Path) -> None:
    with running(STUCK, tmp_path) as (process, url):
        clients = [threading.Thread(target=draw, args=(url,)) for _ in range(3)]
        for client in clients:
            client.start()
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["drawing\n"] * 2
        end_by_ctrl_c(process, tmp_path)
        for client in clients:
            client.join(60)


class FakePage:
    """Stands for the server; keeps what it was made with."""

    made: list[Any]

    def __init__(
        self, folder: Path, limits: Limits, explained: Any, address: Address, given: str | None
    ) -> None:
        self.url = "http://127.0.0.1/"
        type(self).made = [limits, address, given]

    def run(self, stop: object) -> None:
        """Do not serve."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakePage]:
    monkeypatch.setattr(serve, "Page", FakePage)
    return FakePage


def test_the_container_serves_visitors(synth: Synth, fake: type[FakePage]) -> None:
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    found = re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    assert found is not None
    _, *arguments = json.loads(found[1])
    ended = synth(*arguments, "--host", "course.example.org", "--search-limit", "5s")
    assert ended.code == 0, ended.stderr
    limits, address, _ = fake.made
    assert limits.is_public and limits.search_s == 5
    assert address == ("0.0.0.0", 8000, ["course.example.org"])


def test_without_visitors_there_are_none_of_their_limits(
    synth: Synth, fake: type[FakePage]
) -> None:
    assert synth("ui", NAME, "--no-browser").code == 0
    limits, _, given = fake.made
    assert not limits.is_public and limits.work_s is None and given == NAME


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "0.0.0.0"), "can be reached from other machines"),
        (("--listen", "here"), "is no address"),
        (("--host", "x.org"), "--host is for visitors; add --public"),
        (("--port", "99999"), "--port"),
        (("gone.json",), "cannot read gone.json"),
        (("/dev/null",), "not JSON"),
    ],
)
def test_a_mistake_is_one_line(synth: Synth, arguments: tuple[str, ...], words: str) -> None:
    ended = synth("ui", "--no-browser", *arguments)
    assert ended.code == 2
    assert words in ended.stderr


def test_without_the_extra_its_name_is_said(synth: Synth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ended = synth("ui")
    assert ended.code == 2
    assert "pip install 'synth-pipeline[ui]'" in ended.stderr


def test_the_command_line_of_a_schedule_makes_the_same_plan(
    synth: Synth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    setting = PipelineSetting(ranks=4, micro_batches=6, link="20us,10GB/s", partition=(7, 6, 6, 5))
    source = ShownSchedule(schedule="zb-h1")
    program, *arguments = shlex.split(commands(setting, LOCAL, source))
    assert program == "synth"
    ended = synth(*arguments)
    assert ended.code == 0, ended.stderr
    (path,) = (tmp_path / "plans").iterdir()
    plan = Plan.load(path)
    drawn = Drawings(Models(tmp_path, LOCAL), LOCAL).of(setting, source)
    assert plan.claim.makespan_us == drawn.plan.claim.makespan_us
    assert plan.partition == drawn.plan.partition == (7, 6, 6, 5)


def test_the_command_line_of_a_search_is_understood(synth: Synth) -> None:
    setting = PipelineSetting(
        ranks=4, micro_batches=6, placement="v", mem_limit="40GB", link="20us,10GB/s", time_limit=5
    )
    program, *arguments = shlex.split(commands(setting, LOCAL))
    assert program == "synth"
    without_output = arguments[: arguments.index("-o")]
    assert synth(*without_output, "--dry-run").code == 0


def words_of(line: str, option: str) -> str:
    words = shlex.split(line)
    return words[words.index(option) + 1]


def test_a_partition_of_other_stages_is_not_in_the_command_of_a_schedule() -> None:
    setting = PipelineSetting(ranks=4, micro_batches=6, partition=(7, 6, 6, 5))
    for schedule, partition in (("1f1b", "7,6,6,5"), ("zb-v", "even"), ("interleaved:2", "even")):
        line = commands(setting, LOCAL, ShownSchedule(schedule=schedule))
        assert words_of(line, "--partition") == partition, schedule


def test_commands_have_the_limits_that_the_page_keeps() -> None:
    setting, limits = PipelineSetting(time_limit=500), public(search_s=30)
    assert words_of(commands(setting, limits), "--time-limit") == "30s"
    line = curve_commands(setting, limits, 15)
    assert words_of(line, "--points") == "6"
    assert words_of(line, "--time-limit") == "5s"
    assert words_of(curve_commands(setting, LOCAL, 15), "--points") == "15"


def test_a_file_whose_name_begins_with_a_dash_is_no_option() -> None:
    setting = PipelineSetting(model="-x.json", ranks=4)
    assert shlex.split(commands(setting, LOCAL))[2] == "./-x.json"
    estimated = setting.replace(device="h100")
    assert shlex.split(commands(estimated, LOCAL))[:3] == ["synth", "estimate", "./-x.json"]


def test_what_is_cancelled_at_the_end_has_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("tests.quiet_end")
    logger.addFilter(serve.QuietEnd())
    for error in (asyncio.CancelledError(), ValueError("a bug")):
        logger.error("Exception in ASGI application", exc_info=error)
    logger.error("Cancel %s running task(s), timeout graceful shutdown exceeded", 2)
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ValueError]
    assert len(caplog.records) == 1
