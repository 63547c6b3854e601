"""Stopped processes, recognised by their state in the system."""

import ast
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from synth.runtime.training.watchdog import is_stopped

TRACED = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 19)"


@pytest.mark.parametrize(
    ("state", "stopped"), [("T", True), ("t", True), ("S", False), ("D", False), ("Z", False)]
)
def test_held_by_a_signal_or_by_a_debugger_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, stopped: bool
) -> None:
    monkeypatch.setattr("synth.runtime.processes.PROC", tmp_path)
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_text(f"12 (a T) b) {state} 1 12 12 0")
    assert is_stopped(12) is stopped
    assert not is_stopped(13)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "ptrace"), reason="needs ptrace"
)
def test_a_process_that_its_debugger_holds_is_stopped() -> None:
    process = subprocess.Popen([sys.executable, "-c", TRACED])
    try:
        end = time.monotonic() + 60
        while not is_stopped(process.pid) and time.monotonic() < end:
            time.sleep(0.05)
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        if stat.rsplit(")", 1)[1].split()[0] == "T":
            pytest.skip("tracing is not allowed here")
        assert is_stopped(process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are read from /proc")
def test_the_ranks_of_one_start_find_each_other_before_they_have_joined() -> None:
    def start(code: str, rank: int, run: str, start: int) -> "subprocess.Popen[str]":
        told = {"RANK": rank, "TORCHELASTIC_RUN_ID": run, "TORCHELASTIC_RESTART_COUNT": start}
        environment = {**os.environ, "WORLD_SIZE": "2", **{k: str(v) for k, v in told.items()}}
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    wait = "import time; print('here', flush=True); time.sleep(600)"
    others = [start(wait, 1, "a", 1), start(wait, 0, "a", 0), start(wait, 0, "b", 1)]
    try:
        for other in others:
            assert other.stdout is not None and other.stdout.readline() == "here\n"
        look = "from synth.runtime.training.watchdog import sibling_pids; print(sibling_pids())"
        process = start(look, 0, "a", 1)
        stdout, _ = process.communicate(timeout=300)
        assert ast.literal_eval(stdout) == {0: process.pid, 1: others[0].pid}
    finally:
        for other in others:
            other.kill()
            other.communicate()
