"""Ctrl-C once or twice at random moments of every long command: an answer, or one line and 130."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from synth.families import generate
from synth.plan.memory_curve.curve_file import MemoryCurve
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME
from tests.thorough.examples import Examples
from tests.thorough.processes import Started, started

SIZE = (NAME, "--ranks", "8", "--micro-batches", "24", "--gap", "0%")
RUN = ("run", "RUN_PLAN", "--data", "TEXT", "--device", "cpu", "-o", "run.json", "--steps")
COMMANDS: dict[str, tuple[str, ...]] = {
    "solve": ("solve", *SIZE, "--workers", "2", "--mem-limit", "20GB", "-o", "plan.json"),
    "least": ("solve", *SIZE, "--mem-limit", "min", "--target", "105%", "-o", "plan.json"),
    "compare": ("compare", *SIZE, "--svg", "picture.svg"),
    "frontier": (
        "frontier",
        *SIZE,
        "--points",
        "3",
        "--jobs",
        "1",
        "-o",
        "curve.json",
        "--svg",
        "picture.svg",
    ),
    "prove": ("check", "asked.json", "--prove"),
    "profile": (
        *("profile", "gpt-bytes", "--micro-batch-size", "1", "--seq-len", "32"),
        *("--ranks", "2", "--device", "cpu", "-o", "profile.json"),
    ),
    "run": (*RUN, "100000", "--trace", "trace.json", "--trace-every", "1000"),
    "run with checkpoints": (*RUN, "60", "--checkpoint", "saved", "--checkpoint-every", "5"),
}

# So long after the last Ctrl-C a command has ended.
LONGEST_END_S = 60
LEAVE_S = 20


def is_picture(path: Path) -> None:
    assert path.read_text().rstrip().endswith("</svg>")


VALID: dict[str, Callable[[Path], object]] = {
    "plan.json": lambda path: Plan.load(path).check(),
    "curve.json": lambda path: MemoryCurve.load(path).check(),
    "profile.json": Profile.load,
    "run.json": lambda path: json.loads(path.read_text()),
    "trace.json": lambda path: json.loads(path.read_text()),
    "picture.svg": is_picture,
}


@pytest.mark.thorough(share=0.2)
def test_no_moment_of_ctrl_c_ends_in_a_traceback_or_half_a_file(
    run_plan: Path, text: Path, examples: Examples, tmp_path: Path
) -> None:
    plan = Plan.of(Profile.load(find(NAME)), [3] * 8, generate("zb-h1", 8, 24))
    paths = {"RUN_PLAN": str(run_plan), "TEXT": str(text)}

    def check(draw: random.Random) -> None:
        name = draw.choice(list(COMMANDS))
        folder = tmp_path / str(draw.getrandbits(64))
        folder.mkdir()
        plan.save(folder / "asked.json")
        with started([paths.get(word, word) for word in COMMANDS[name]], folder) as command:
            told = (name, interrupt(draw, command))
            code = command.process.wait(timeout=LONGEST_END_S)
            stdout, stderr = command.stdout, command.stderr
            said = "\n".join(map(str, (*told, code, stdout, stderr)))
            assert command.left_after(LEAVE_S) == [], said
        assert "Traceback" not in stderr, said
        # After the output is complete, another signal ends it as usual: for a shell, also with 130.
        assert code in (0, 130, -signal.SIGINT), said
        assert code or stdout, said
        if code == 130:
            words = ("interrupted", "error: ", "stopping")
            assert any(line.startswith(words) for line in stderr.splitlines()), said
        for path in folder.iterdir():
            if path.name in VALID:
                VALID[path.name](path)
            elif path.suffix != ".lock":  # which holds up nobody
                assert not path.name.startswith("."), f"{path}\n{said}"

    examples.each(check)


def interrupt(draw: random.Random, command: Started) -> str:
    """Press Ctrl-C at random moments: for the command alone, or as a terminal, for its group."""
    pauses_s = [0.05 + draw.choice((draw.uniform(0, 2), draw.uniform(0, 12)))]
    if draw.random() < 0.5:
        pauses_s.append(draw.choice((draw.uniform(0, 0.3), draw.uniform(0, 3))))
    of_group = draw.random() < 0.5
    command.wait_until_there()
    for pause_s in pauses_s:
        time.sleep(pause_s)
        with suppress(ProcessLookupError):
            (os.killpg if of_group else os.kill)(command.process.pid, signal.SIGINT)
    return f"Ctrl-C{' of the group' if of_group else ''} after {pauses_s} s"
