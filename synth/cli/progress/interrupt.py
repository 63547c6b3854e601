"""Work that Ctrl-C stops in two steps: the first asks it to finish, the second gives up.

The work runs in another thread, because a solver in the main thread would catch SIGINT itself.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from synth.cli.answer.output import talk
from synth.errors import ExitCode, SynthError

_Result = TypeVar("_Result")

_THREAD = "solve"
_POLL_S = 0.2

# How late work may end where there is something to answer without it, and where there is nothing.
_GRACE_S = 0.8
_MOST_GRACE_S = 1.2

# How long work may take to end after Ctrl-C, where there is something to answer without it.
_INTERRUPT_GRACE_S = 3.0


class Interrupted(SynthError):
    """Stopped with nothing to keep."""

    exit_code = ExitCode.INTERRUPTED


def run_interruptibly(
    work: Callable[[threading.Event], _Result],
    until: float | None = None,
    so_far: Callable[[], _Result | None] = lambda: None,
) -> _Result:
    """Run work that watches the event it is given; raise here what it raises there.

    Work that does not end soon after it was asked to is left alone, if there is something so far.
    Ctrl-C afterwards, while the answer is written, does not stop that until it comes twice.

    Args:
        work: runs in a thread of its own.
        until: the time of `time.monotonic` at which it ends by itself; None: it has no limit.
        so_far: returns the answer if the work does not end in time; None if there is none.

    Raises:
        OutOfTime: the time is over, and there is nothing so far.
    """
    stop, done = threading.Event(), threading.Event()
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(stop))
        except BaseException as error:  # raised again in the main thread
            errors.append(error)
        finally:
            done.set()

    asked = _Asked(stop, until)
    signal.signal(signal.SIGINT, asked.handle)
    threading.Thread(target=run, name=_THREAD, daemon=True).start()
    while not done.wait(_POLL_S):
        if asked.is_overdue() and (found := so_far()) is not None:
            stop.set()
            return found
        if asked.is_hopeless():
            stop.set()
            raise OutOfTime(
                "nothing was found in the time given; allow more --time-limit, or give fewer "
                "micro-batches"
            )
    if errors:
        raise errors[0]
    return results[0]


def is_work_left_alone() -> bool:
    """True while work goes on that nobody waits for."""
    return any(thread.name == _THREAD and thread.is_alive() for thread in threading.enumerate())


class _Asked:
    """Tells how late the work is: after the end of its limit, or after Ctrl-C."""

    def __init__(self, stop: threading.Event, until: float | None) -> None:
        self._stop, self._until = stop, until
        self._since: float | None = None
        self._is_interrupt = False

    def is_overdue(self) -> bool:
        """True once the work is not waited for any longer, if there is something to answer."""
        grace_s = _INTERRUPT_GRACE_S if self._is_interrupt else _GRACE_S
        return self._late_s() >= grace_s

    def is_hopeless(self) -> bool:
        """True once nothing is to be waited for any longer."""
        return not self._is_interrupt and self._late_s() >= _MOST_GRACE_S

    def _late_s(self) -> float:
        """Seconds since the work should have begun to end."""
        since = self._since if self._is_interrupt else self._until
        return -1.0 if since is None else time.monotonic() - since

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Take in Ctrl-C."""
        if self._is_interrupt:
            # The solver's threads cannot be ended from here, so the process ends without them.
            _exit(ExitCode.INTERRUPTED)
        self._is_interrupt = True
        self._stop.set()
        self._since = time.monotonic()
        talk("stopping and keeping the best so far; Ctrl-C again gives up at once")


class OutOfTime(SynthError):
    """The time limit is over, and there is nothing to answer."""

    exit_code = ExitCode.NOTHING_FOUND


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
