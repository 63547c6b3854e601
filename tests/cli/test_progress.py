"""The line of progress on a terminal, and what `--quiet` leaves out."""

import io
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from synth.cli.commands import app
from synth.cli.progress import line as progress
from synth.cli.progress.line import ProgressLine, current_line, progress_line
from synth.system.messages import is_quiet
from tests.cli.conftest import NAME, SMALL_SOLVE, Synth


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal, on which the line is redrawn often."""
    monkeypatch.setattr(progress, "_EVERY_S", 0.005)
    monkeypatch.setattr(progress, "_AFTER_S", 0.01)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def wait_for(is_there: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not is_there():
        assert time.monotonic() < until
        time.sleep(0.002)


def visible(text: str) -> str:
    """The last line of a terminal, as it is after erasing."""
    return text.rpartition("\n")[2].rpartition("\r\x1b[2K")[2]


def test_the_line_shows_the_state_and_is_erased_before_other_text_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = make_terminal(monkeypatch)
    with progress_line("solve"):
        current_line().tell("makespan 2 s", time.monotonic() + 60)
        wait_for(lambda: "makespan 2 s" in visible(terminal.getvalue()))
        shown = visible(terminal.getvalue())
        assert re.fullmatch(r"solve \d+ s, at most \d+ s left: makespan 2 s", shown)
        print("a message", file=sys.stderr)
        assert re.search(r"\r\x1b\[2Ka message\n", terminal.getvalue())
        wait_for(lambda: "makespan 2 s" in visible(terminal.getvalue()))
    assert visible(terminal.getvalue()) == ""
    assert sys.stderr is terminal


def test_a_line_that_is_not_ended_is_not_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with progress_line("solve"):
        wait_for(lambda: "solve" in terminal.getvalue())
        sys.stderr.write("half a line")
        time.sleep(0.05)
        assert terminal.getvalue().endswith("\r\x1b[2Khalf a line")
        sys.stderr.write(", ended\n")
        wait_for(lambda: visible(terminal.getvalue()).startswith("solve"))


def test_the_thread_of_a_line_that_is_stopped_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    make_terminal(monkeypatch)
    with progress_line("run"):
        line = current_line()
        assert "progress" in [thread.name for thread in threading.enumerate()]
        line.stop()  # ranks may be forked from here on
        assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_the_time_left_is_that_until_the_limit() -> None:
    line = ProgressLine("compare")
    now = time.monotonic()
    assert line.text(now + 3) == "compare 3 s"
    line.tell("zb-h1", until=now + 10)
    assert line.text(now + 3) == "compare 3 s, at most 7 s left: zb-h1"
    line.tell("zb-h2")
    assert line.text(now + 30) == "compare 30 s, at most 0 s left: zb-h2"


def test_an_estimate_of_the_time_left_takes_the_place_of_a_limit() -> None:
    line, now = ProgressLine("profile"), time.monotonic()
    line.tell("measuring a", until=now + 60, expected=now + 10)
    assert line.text(now + 3) == "profile 3 s, about 7 s left: measuring a"
    line.tell("measuring b")
    assert line.text(now + 3) == "profile 3 s, at most 57 s left: measuring b"


def test_compare_shows_bound_and_gap_while_it_searches(
    synth: Synth, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(ProgressLine, "tell", lambda line, text, *_, **__: told.append(text))
    size = ("--ranks", "4", "--micro-batches", "4", "--time-limit", "2s")
    ended = synth(
        "compare", NAME, *size, "--only", "1f1b", "--placement", "linear", "--partition", "even"
    )
    assert ended.code == 0, ended.stderr
    of_search = [text for text in told if text.startswith("solved linear: makespan ")]
    assert any(
        re.search(r"s, bound [\d.]+ \w+, gap [\d.]+ %; best makespan so far .*\(1f1b\)", text)
        for text in of_search
    ), told


def test_without_a_terminal_there_is_no_line(synth: Synth) -> None:
    ended = synth(*SMALL_SOLVE, "--mem-limit", "40GB")
    assert ended.code == 0
    assert "\r" not in ended.stderr and "\x1b" not in ended.stderr
    assert not re.search(r"solve \d+ s", ended.stderr)


def test_quiet_leaves_messages_out_but_not_warnings(
    synth: Synth, plan_file: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    assert synth("show", plan_file, "--trace", trace).stderr == f"written: {trace}\n"
    quiet = synth("show", plan_file, "--trace", trace, "-q")
    assert (quiet.code, quiet.stderr) == (0, "")
    assert "makespan" in quiet.stdout
    assert not is_quiet()
    changed = tmp_path / "changed.json"
    changed.write_text(plan_file.read_text().replace('"name": "', '"name": "other '))
    assert "warning: " in synth("show", changed, "--quiet").stderr
    refused = synth(*SMALL_SOLVE, "--mem-limit", "1GB", "--quiet")
    assert refused.code == 3 and refused.stderr.startswith("error: ")


def test_every_command_can_be_quiet() -> None:
    group: Any = typer.main.get_command(app)
    assert len(group.commands) > 10
    for name in group.commands:
        _, command, _ = group.resolve_command(group.make_context("synth", [name]), [name])
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--quiet", "-q"} <= options, name
