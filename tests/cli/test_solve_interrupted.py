"""`synth solve` and Ctrl-C, in a process of its own: a problem that takes minutes to prove."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from synth.schedule.files.plan_file import Plan
from tests.cli.conftest import NAME
from tests.cli.worker_processes import workers_of
from tests.synth.worker_processes import left_after

ROOT = Path(__file__).resolve().parents[2]
# Nothing is chosen but the order, so that CP-SAT's workers start within seconds.
ORDER_ONLY = ("--placement", "linear", "--partition", "even", "--recompute", "none")
WITHIN_LIMIT = ("--mem-limit", "16GB", *ORDER_ONLY, "--time-limit", "300s")


def start_long_solve(path: Path, *limit: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a terminal does."""
    command = [sys.executable, "-m", "synth", "solve", NAME, "--ranks", "8"]
    command += ["--micro-batches", "24", *(limit or WITHIN_LIMIT)]
    command += ["--gap", "0%", "-o", str(path)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    until = time.monotonic() + 300
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert path.exists()
    return process


def test_the_first_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    process = start_long_solve(tmp_path / "plan.json")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "stopping and keeping the best so far" in stderr
    assert "status: interrupt" in stdout
    plan = Plan.load(tmp_path / "plan.json")
    plan.check()
    assert plan.claim.stopped_by == "interrupt"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are read from /proc")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal_reaches_workers_too_and_leaves_none(
    times: int, tmp_path: Path
) -> None:
    process = start_long_solve(tmp_path / "plan.json")
    until = time.monotonic() + 300
    while not (workers := workers_of(process.pid, b"worker_program")) and time.monotonic() < until:
        time.sleep(0.02)
    assert workers
    assert process.stderr is not None
    os.killpg(process.pid, signal.SIGINT)
    if times == 2:
        while "stopping" not in process.stderr.readline():
            pass
        os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0 or (times, process.returncode) == (2, 130), stderr
    assert "Traceback" not in stderr
    assert ("status: interrupt" in stdout) == (process.returncode == 0)
    assert left_after(20, workers) == []
    Plan.load(tmp_path / "plan.json").check()


def test_the_second_ctrl_c_gives_up_with_130_and_a_whole_file(tmp_path: Path) -> None:
    process = start_long_solve(tmp_path / "plan.json")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode in (130, 0)  # 0: the search had already stopped
    Plan.load(tmp_path / "plan.json").check()


def test_ctrl_c_keeps_the_least_memory_so_far(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    process = start_long_solve(path, "--mem-limit", "min", "--target", "105%")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert "stopping and keeping the best so far" in stderr
    assert "status: interrupt" in stdout
    plan = Plan.load(path)
    plan.check()
    assert plan.caps_bytes == (max(plan.claim.peak_bytes),) * 8
