"""Child processes: tasks, stops, reports and their ends."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from synth.system.child_process import ChildProcess
from synth.system.child_program import ParentProcess
from tests.synth.worker_processes import left_after

ROOT = Path(__file__).parents[3]

# A fork that runs no Python hooks keeps the parent's end of the pipe open.
DIES_IN_A_TASK = """
import ctypes, os, signal, struct, time
from tests.synth.system.test_child_process import child
process = child(keeps_output=True)
process.send(2)
process.receive()
os.write(process.connection.fileno(), struct.pack("!i", 1000) + b"the beginning")
if ctypes.PyDLL(None).fork() == 0:
    time.sleep(20)
    os._exit(0)
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def serve(parent: ParentProcess) -> None:
    """Report each number and whether it is to stop, once that is known; 0 is a failure."""
    while True:
        number = parent.tasks.get()
        print("got", number, flush=True)
        parent.report(1 / number)
        parent.report(parent.stop.wait(0 if number > 1 else 60))


def child(*, keeps_output: bool = False) -> ChildProcess:
    return ChildProcess(f"{__name__}:serve", keeps_output=keeps_output)


def test_a_stop_is_for_the_task_before_it() -> None:
    with closing(child()) as process:
        for number in (1, 2):
            process.send(number)
            assert process.receive() == 1 / number
            if number == 1:
                process.send(None)
            assert process.receive() == (number == 1)


def test_a_child_that_is_killed_is_noticed() -> None:
    with closing(child()) as process:
        process.send(1)
        assert process.receive() == 1
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EOFError):
            process.receive()
        assert process.end(10, 100) == (-signal.SIGKILL, "")


def test_what_a_child_printed_last_tells_why_it_failed() -> None:
    with closing(child(keeps_output=True)) as process:
        process.send(0)
        with pytest.raises(EOFError):
            process.receive()
        code, words = process.end(10, 10_000)
        assert code == 1
        assert words.startswith("got 0") and words.endswith("ZeroDivisionError: division by zero")


def test_a_child_ends_with_a_parent_that_dies_in_the_middle_of_a_task() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", DIES_IN_A_TASK],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with closing(parent.stdout) as output:  # type: ignore[type-var]
        assert output is not None
        pid = int(output.readline())
        assert parent.wait(10) == -signal.SIGKILL
        assert left_after(10, [pid]) == []
