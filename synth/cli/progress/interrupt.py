"""Work that Ctrl-C stops in two steps: the first asks it to finish, the second gives up.

The work runs in another thread, because a solver in the main thread would catch SIGINT itself.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from types import FrameType
from typing import TypeVar

from synth.cli.answer.output import talk
from synth.cli.progress.line import current_line
from synth.errors import ExitCode, SynthError

_Result = TypeVar("_Result")

_THREAD = "solve"

# Interval at which the main thread looks at the clock; the end of the work wakes it at once.
_POLL_S = 0.2

# Seconds to wait after the limit: with a result so far, and without one.
_GRACE_S = 0.8
_MOST_GRACE_S = 1.2

# Seconds to wait after Ctrl-C if there is a result so far.
_INTERRUPT_GRACE_S = 3.0

# Seconds of processor time that the work gets at any limit and load, before it is abandoned for a
# result so far, or for nothing; and the multiple of them after the limit, by the clock, at which it
# seems to wait for something else.
_WORK_S = 2.0
_MOST_WORK_S = 5.0
_MOST_LOAD = 20


def run_interruptibly(
    work: Callable[[threading.Event], _Result],
    until: float | None = None,
    so_far: Callable[[], _Result | None] = lambda: None,
) -> _Result:
    """Run work in a thread, with a stop event; its exceptions are raised here.

    Work that does not end soon after a stop is abandoned if there is a result so far. From then on,
    while the answer is written, the process ends at the second Ctrl-C only, whatever came before.

    Args:
        until: the moment (`time.monotonic`) at which it ends by itself; None: no limit.
        so_far: returns the answer if the work does not end in time; None if there is none.

    Raises:
        OutOfTime: the time is over without a result.
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
    current_line().limit(until)
    # The thread has a context of its own, which begins as a copy of this one.
    target = partial(copy_context().run, run)
    threading.Thread(target=target, name=_THREAD, daemon=True).start()
    while not done.wait(_POLL_S):
        if asked.is_overdue() and (found := so_far()) is not None:
            stop.set()
            signal.signal(signal.SIGINT, _Asked(stop).handle)
            return found
        if asked.is_hopeless():
            stop.set()
            raise OutOfTime(
                "nothing was found in the time given; allow more --time-limit, or give fewer "
                "micro-batches"
            )
    signal.signal(signal.SIGINT, _Asked(stop).handle)
    if errors:
        raise errors[0]
    return results[0]


def is_stop_asked() -> bool:
    """Return True if Ctrl-C came while the answer is written."""
    asked = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return isinstance(asked, _Asked) and asked.is_interrupt


def is_work_left_alone() -> bool:
    """Return True while abandoned work is running."""
    return any(thread.name == _THREAD and thread.is_alive() for thread in threading.enumerate())


class _Asked:
    """Measures how late the work is: after its limit, or after Ctrl-C."""

    def __init__(self, stop: threading.Event, until: float | None = None) -> None:
        self._stop, self._until = stop, until
        self._since: float | None = None
        self.is_interrupt = False
        self._worked_s = time.process_time()

    def is_overdue(self) -> bool:
        """Return True if the work is to be abandoned, given a result so far."""
        if self.is_interrupt:
            return self._late_s() >= _INTERRUPT_GRACE_S
        return self._late_s() >= _GRACE_S and self._has_worked(_WORK_S)

    def is_hopeless(self) -> bool:
        """Return True if the work is to be abandoned even without a result."""
        is_late = not self.is_interrupt and self._late_s() >= _MOST_GRACE_S
        return is_late and self._has_worked(_MOST_WORK_S)

    def _has_worked(self, work_s: float) -> bool:
        """Return True if the process had so much processor time, or seems to wait for others."""
        is_waiting = self._late_s() >= _MOST_LOAD * work_s
        return is_waiting or time.process_time() - self._worked_s >= work_s

    def _late_s(self) -> float:
        """Return the seconds since the work should have begun to end."""
        since = self._since if self.is_interrupt else self._until
        return -1.0 if since is None else time.monotonic() - since

    def handle(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT: ask for a stop, and give up at the second one."""
        if self.is_interrupt:
            # The solver's threads cannot be ended from here, so the process ends without them.
            _exit(ExitCode.INTERRUPTED)
        self.is_interrupt = True
        self._stop.set()
        self._since = time.monotonic()
        talk("stopping and keeping the best so far; Ctrl-C again gives up at once")


class OutOfTime(SynthError):
    """The time limit is over without a result."""

    exit_code = ExitCode.NOTHING_FOUND


def _exit(code: int) -> None:
    current_line().stop()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
