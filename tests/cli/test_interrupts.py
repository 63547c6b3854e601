"""Ctrl-C at any moment of a command: one line and 130, or what was found is printed and saved."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from synth.cli.progress import interrupt
from synth.cli.progress.interrupt import OutOfTime, run_interruptibly
from synth.costs.costs import uniform_costs
from synth.options.deadline import Deadline
from synth.search.best_so_far import BestSoFar
from synth.search.outcome import StoppedBy
from synth.solver.problem import Problem
from synth.solver.result import Incumbent
from tests.cli.conftest import NAME, Synth
from tests.sweep import sweep

ROOT = Path(__file__).resolve().parents[2]
# As the installed script begins; that tells when the interpreter has come so far.
SYNTH = [
    sys.executable,
    "-c",
    "import synth.cli, sys; sys.stderr.write('here\\n'); sys.stderr.flush(); synth.cli.main()",
]
SIZE = ("--ranks", "8", "--micro-batches", "24", "--gap", "0%")
COMMANDS = {
    "solve": ("solve", NAME, *SIZE, "--mem-limit", "20GB"),
    "least": ("solve", NAME, *SIZE, "--mem-limit", "min", "--target", "105%"),
    "compare": ("compare", NAME, *SIZE),
    "frontier": ("frontier", NAME, *SIZE, "--points", "3", "-o", "curve.json"),
    "check": ("check", "plan.json"),
}


@pytest.mark.parametrize("pause_s", sweep([0.0, 1.6, 0.4, 0.15, 0.8, 3.2], daily=2))
@pytest.mark.parametrize("name", COMMANDS)
def test_no_moment_of_ctrl_c_ends_in_a_traceback(
    name: str, pause_s: float, tmp_path: Path, plan_file: Path
) -> None:
    (tmp_path / "plan.json").write_bytes(plan_file.read_bytes())
    process = subprocess.Popen(
        [*SYNTH, *COMMANDS[name]],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "here\n"
    time.sleep(0.05 + pause_s)  # main takes charge of Ctrl-C first of all
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert "Traceback" not in stderr
    assert process.returncode in (0, 130)
    assert (process.returncode == 0) == bool(stdout)


def test_the_first_ctrl_c_while_the_answer_is_written_lets_it_be_written() -> None:
    code = (
        "import os, signal, sys, time\n"
        "from synth.cli import give_up\n"
        "from synth.cli.progress.interrupt import run_interruptibly\n"
        "signal.signal(signal.SIGINT, give_up)\n"
        "found = run_interruptibly(lambda stop: 'found')\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print(found)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('not reached')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (130, "found\n")
    assert "Ctrl-C again gives up at once" in ended.stderr


def test_a_ctrl_c_in_the_search_and_one_after_it_keep_the_answer() -> None:
    code = (
        "import os, signal\n"
        "from synth.cli.progress.interrupt import is_stop_asked, run_interruptibly\n"
        "def work(stop):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert stop.wait(60)\n"
        "    return 'found'\n"
        "found = run_interruptibly(work)\n"
        "print(found, is_stop_asked())\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print(found, is_stop_asked())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "found False\nfound True\n"), ended.stderr


def test_a_ctrl_c_while_python_ends_changes_nothing() -> None:
    code = (
        "import atexit, os, signal, sys, synth.cli\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['synth', '--version']\n"
        "synth.cli.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("synth ")


def test_work_that_does_not_end_in_time_is_left_for_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    monkeypatch.setattr(interrupt, "_WORK_S", 0.0)
    monkeypatch.setattr(interrupt, "_MOST_WORK_S", 0.0)
    previous = signal.getsignal(signal.SIGINT)
    try:
        found = run_interruptibly(_waiting(over), time.monotonic(), lambda: "so far")
        assert found == "so far"
        with pytest.raises(OutOfTime, match="nothing was found in the time given"):
            run_interruptibly(_waiting(over), time.monotonic())
    finally:
        over.set()
        signal.signal(signal.SIGINT, previous)


def test_a_late_search_without_a_schedule_gets_some_work_done_first() -> None:
    def working(stop: threading.Event) -> str:
        until_s = time.thread_time() + 2.5  # the clock alone would end it after 1.2 s
        while time.thread_time() < until_s:
            pass
        return "found"

    previous = signal.getsignal(signal.SIGINT)
    try:
        assert run_interruptibly(working, time.monotonic()) == "found"
    finally:
        signal.signal(signal.SIGINT, previous)


def _waiting(over: threading.Event) -> Callable[[threading.Event], str]:
    def work(stop: threading.Event) -> str:
        over.wait(600)
        return "the end"

    return work


def incumbent(value_us: int) -> Incumbent:
    problem = Problem.linear(
        uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1), 2
    )
    return Incumbent(problem, 0.0, None, None, value_us, 1, "test", (1,))  # type: ignore[arg-type]


def test_the_best_that_was_told_is_the_answer_and_nothing_is_heard_after_it() -> None:
    heard = list[int]()
    so_far = BestSoFar[Incumbent](lambda found: heard.append(found.value_us))
    assert so_far.close() is None
    for value_us in (9, 7, 8):
        so_far(incumbent(value_us))
    best = so_far.close()
    so_far(incumbent(5))
    assert best is not None
    result = best.as_result(1.0, StoppedBy.TIME_LIMIT)
    assert (result.value_us, result.stopped_by, result.wall_s) == (7, StoppedBy.TIME_LIMIT, 1.0)
    assert heard == [9, 7]
    proven = replace(best, lower_bound_us=7).as_result(1.0, StoppedBy.TIME_LIMIT)
    assert proven.stopped_by == StoppedBy.OPTIMAL


def test_what_there_is_no_time_for_is_left_out_of_the_comparison_and_named(synth: Synth) -> None:
    at_once = ("--no-solve", "--time-limit", "0.001s", "--only", "1f1b", "--only", "gpipe")
    ended = synth("compare", NAME, "-r", "4", "-m", "8", *at_once)
    assert ended.code == 0 and "not simulated" not in ended.stdout  # so few ops are none
    ended = synth("compare", NAME, "-r", "4", "-m", "9000", *at_once)
    assert ended.code == 0 and "not simulated" in ended.stdout


def test_reading_and_cutting_count_towards_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    worked = [1.0]
    monkeypatch.setattr("synth.options.deadline.time.monotonic", lambda: now[0])
    monkeypatch.setattr("synth.options.deadline.time.thread_time", lambda: worked[0])
    deadline = Deadline.of(10)
    is_over = deadline.for_partitions()
    assert not is_over() and deadline.left_of(10.0) == 10.0
    now[0] += 4.0
    assert not is_over()  # a busy machine has done no work in these four seconds
    worked[0] += 0.6
    assert is_over() and deadline.left_of(10.0) == 6.0
    assert deadline.until() == 110.0 and deadline.until(2) == 120.0
    assert deadline.without_answer(20_000) == deadline
    assert deadline.without_answer(120_000).left_of(10.0) == pytest.approx(5.2)


def test_a_limit_that_is_no_clock_leaves_the_search_all_of_it() -> None:
    deadline = Deadline.of(0.5, is_clock=False)
    assert deadline.left_of(0.5) == 0.5
    assert deadline.until() is None and not deadline.for_partitions()()
