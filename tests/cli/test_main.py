"""The command line as a whole: help, version, errors, streams."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from synth import __version__
from synth.errors import Mismatch, RunFailure, SynthError
from tests.cli.conftest import Synth

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("launcher", [["-m", "synth"], [str(ROOT / "cli.py")]])
def test_every_launcher_knows_its_version(launcher: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, *launcher, "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, f"synth {__version__}\n", "")


def test_help_lists_the_commands(synth: Synth) -> None:
    ended = synth("--help")
    assert ended.code == 0
    for command in ("check", "show", "solve"):
        assert command in ended.stdout


def test_an_unknown_command_ends_in_2(synth: Synth) -> None:
    ended = synth("slove")
    assert ended.code == 2
    assert "slove" in ended.stderr


@pytest.mark.parametrize(("error", "code"), [(SynthError, 2), (RunFailure, 1), (Mismatch, 5)])
def test_an_error_is_one_message_and_its_exit_code(
    synth: Synth, monkeypatch: pytest.MonkeyPatch, error: type[SynthError], code: int
) -> None:
    def fail(prog_name: str) -> None:
        raise error("so it is")

    monkeypatch.setattr("synth.cli.app", fail)
    ended = synth("check", "x")
    assert (ended.code, ended.stderr) == (code, "error: so it is\n")


def test_a_bug_keeps_its_traceback() -> None:
    code = (
        "import synth.cli as c\n"
        "def fail(prog_name): raise ZeroDivisionError('a bug')\n"
        "c.app = fail\nc.main()"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert "Traceback" in run.stderr and "ZeroDivisionError: a bug" in run.stderr


def test_a_reader_that_goes_away_is_no_traceback(plan_file: Path) -> None:
    command = f"{sys.executable} -m synth show {plan_file} --format json | head -c 1"
    run = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == "{"
    assert "Traceback" not in run.stderr


def test_a_stream_that_cannot_show_every_letter_is_no_traceback(plan_file: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "synth", "show", str(plan_file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert run.returncode == 0, run.stderr
    assert "rank 0" in run.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_the_null_device(closed: str, tmp_path: Path) -> None:
    code = (
        "import os, sys, synth.cli as c\n"
        "def tell(prog_name):\n"
        "    print('answer'); print('message', file=sys.stderr)\n"
        "    names = [os.fstat(number).st_rdev for number in range(3)]\n"
        "    open('told', 'w').write(str(os.stat(os.devnull).st_rdev in names))\n"
        "c.app = tell\nc.main()"
    )
    run = subprocess.run(
        f'{sys.executable} -c "{code}" {closed}',
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert (run.stdout, run.stderr) == (
        "" if ">&-" in closed.split() else "answer\n",
        "" if "2>&-" in closed.split() else "message\n",
    )
    assert (tmp_path / "told").read_text() == "True"


@pytest.mark.parametrize("command", ["run", "emulate"])
def test_threads_of_ranks_are_limited_before_numpy_is_imported(command: str) -> None:
    code = (
        "import sys, synth.cli, synth.cli.commands as commands\n"
        "commands.limit_ranks = lambda: print({'numpy', 'torch'} & set(sys.modules))\n"
        f"sys.argv = ['synth', '{command}', 'no-plan.json']\n"
        "synth.cli.main()"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "set()\n"), run.stderr
