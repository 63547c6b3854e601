"""Run `synth` in this process and in a folder of its own, as on a terminal of fixed width."""

import contextlib
import io
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from synth.cli import run_command_line
from tests.cli.conftest import wait_for_work
from tests.last_words import last_of_each

ROOT = Path(__file__).resolve().parents[2]
# Typer draws its boxes as wide as the terminal.
_TERMINAL = {"COLUMNS": "100", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str


def run(command: str) -> Ended:
    """Run a command line without its first word `synth`, in the current folder."""
    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGINT)
    try:
        with (
            patch.dict(os.environ, _TERMINAL),
            patch("typer.rich_utils.FORCE_TERMINAL", False),
            patch.object(sys, "argv", ["synth", *last_of_each(shlex.split(command))]),
            patch("synth.cli._leave_alone", wait_for_work),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            run_command_line()
    except SystemExit as ending:
        code = int(ending.code) if isinstance(ending.code, int) else 0
        return Ended(code, out.getvalue(), err.getvalue())
    finally:
        signal.signal(signal.SIGINT, handler)
    raise AssertionError("a command ends by SystemExit")


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Work in a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        with contextlib.chdir(folder):
            yield folder


def lines_of(text: str) -> list[str]:
    """Return the lines of a text without the paths of this machine and spaces at their ends."""
    for path, word in ((Path.cwd(), "FOLDER"), (ROOT, "CHECKOUT")):
        text = text.replace(str(path), word)
    return [line.rstrip() for line in text.strip("\n").split("\n")]
