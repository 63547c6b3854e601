"""Child processes: tasks, stops, reports and their ends."""

import os
import signal
from contextlib import closing

import pytest

from synth.system.child_process import ChildProcess
from synth.system.child_program import ParentProcess


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
