"""The ranks that this process starts: forked or new interpreters, ended with it, started again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_faults import is_running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc"),
]

ROOT = Path(__file__).resolve().parents[3]

# A rank tells what it finds, and does as its arguments say.
RANK = """
import json, multiprocessing, os, random, signal, sys, time
from pathlib import Path
import numpy as np
def main():
    siblings = None
    if "fork" in sys.argv:  # a new interpreter would import torch for these
        from synth.runtime.training.watchdog import end_without, sibling_pids
        end_without(os.getppid())
        siblings = sibling_pids()
    rank, start = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    told = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "siblings": siblings,
        "arguments": sys.argv[1:],
        "draws": [random.random(), float(np.random.random())],
        "as_new": handlers == [signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "threads": os.environ["OMP_NUM_THREADS"],
        "first_path": sys.path[0],
        "name": multiprocessing.current_process().name,
    }
    Path(f"rank-{rank}-{start}.json").write_text(json.dumps(told))
    if "wait" in sys.argv:
        time.sleep(600)
    if f"fail-{start}" in sys.argv and rank == 1:
        while not Path(f"rank-0-{start}.json").exists():
            time.sleep(0.01)
        sys.exit(7)
if __name__ == "__main__":
    main()
"""

# SIGCHLD is ignored as in a shell with trap '' CHLD.
LAUNCHER = """
import errno, os, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever ignores it around the tests
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if "nohup" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from synth.system.processors import limit_ranks
limit_ranks()
from synth.runtime.training.local_ranks import RanksFailed, Signalled, can_fork, run_ranks
from synth.errors import RunFailure
import atexit
atexit.register(print, "left by way of the launcher's end")
print("not yet written", end="")
at_fork, received = sys.argv[2], []
if at_fork == "none-left":
    forks = iter([os.fork])
    def fork():
        for one in forks:
            return one()
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    os.fork = fork
elif at_fork == "added":
    signal.signal(signal.SIGALRM, lambda *_: received.append(signal.SIGTERM))
    signal.alarm(1)
elif at_fork.startswith("SIG"):
    os.register_at_fork(
        after_in_parent=lambda: os.kill(os.getpid(), signal.Signals[at_fork]),
        after_in_child=lambda: Path(f"forked-{os.getpid()}").touch(),
    )
try:
    run_ranks(2, "rank", sys.argv[1:], signals={signal.SIGTERM, signal.SIGHUP}, received=received,
              max_restarts=1, forked=sys.argv[1] == "fork" and can_fork(("json",)))
except RanksFailed as error:
    print(error.codes)
except Signalled as error:
    print(error.number.name)
except RunFailure as error:
    print(error)
"""


@contextmanager
def launcher(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    (folder / "rank.py").write_text(RANK)
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(folder)))},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(folder: Path, start: int = 0) -> list[dict[str, Any]]:
    """Wait for both ranks of a start, and return what they wrote."""
    paths = [folder / f"rank-{rank}-{start}.json" for rank in range(2)]
    until_s = time.monotonic() + 300
    while time.monotonic() < until_s:
        try:
            return [json.loads(path.read_text()) for path in paths]
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.01)
    raise AssertionError("no rank has begun")


@pytest.mark.parametrize("way", ["fork", "anew"])
def test_ranks_are_new_processes_in_all_that_they_see_and_are_started_again(
    way: str, tmp_path: Path
) -> None:
    with launcher(tmp_path, way, "fail-0", "fail-1") as process:
        stdout, _ = process.communicate(timeout=300)
    assert stdout.count("not yet written") == stdout.count("left by way of") == 1
    assert "1: 7}" in stdout
    for start in range(2):
        ranks = told(tmp_path, start)
        assert len({rank["pid"] for rank in ranks}) == 2
        draws = [draw for rank in ranks for draw in rank["draws"]]
        assert len(set(draws)) == 4
        for rank in ranks:
            assert rank["parent"] == process.pid
            assert rank["session"] == rank["pid"]
            assert (rank["first_path"], rank["name"]) == (str(tmp_path), "MainProcess")
            assert rank["arguments"] == [way, "fail-0", "fail-1"]
            assert rank["as_new"] and rank["blocked"] == 0 and rank["threads"] == "1"
    pids = {str(rank): each["pid"] for rank, each in enumerate(ranks)}
    assert all(rank["siblings"] == (pids if way == "fork" else None) for rank in ranks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_forked_rank_outlives_its_launcher(number: signal.Signals, tmp_path: Path) -> None:
    with launcher(tmp_path, "fork", "nohup", "wait") as process:
        pids = [rank["pid"] for rank in told(tmp_path)]
        process.send_signal(signal.SIGHUP)
        process.send_signal(number)
        stdout, _ = process.communicate(timeout=60)
    assert (number.name in stdout) == (number != signal.SIGKILL)
    assert not any(map(is_running, pids))


def test_ranks_are_ended_for_a_signal_that_somebody_else_has_handled(tmp_path: Path) -> None:
    with launcher(tmp_path, "fork", "added", "wait") as process:
        stdout, _ = process.communicate(timeout=60)
    assert "SIGTERM" in stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_while_ranks_are_forked_leaves_none(
    number: signal.Signals, tmp_path: Path
) -> None:
    with launcher(tmp_path, "fork", number.name, "wait") as process:
        stdout, _ = process.communicate(timeout=60)
    assert (number.name in stdout) == (number != signal.SIGKILL)
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("forked-*")]
    until_s = time.monotonic() + 30
    while any(map(is_running, pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert pids and not any(map(is_running, pids))


def test_a_system_that_starts_no_more_processes_is_one_error(tmp_path: Path) -> None:
    with launcher(tmp_path, "fork", "none-left", "wait") as process:
        stdout, _ = process.communicate(timeout=60)
    assert "1 of 2 ranks could be started, then: Resource temporarily unavailable" in stdout
