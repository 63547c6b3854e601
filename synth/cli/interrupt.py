"""Work that Ctrl-C stops in two steps: the first asks it to finish, the second gives up.

The work runs in another thread, because a solver in the main thread would catch SIGINT itself.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from synth.cli.output import talk
from synth.errors import ExitCode, SynthError

_Result = TypeVar("_Result")


class Interrupted(SynthError):
    """Stopped with nothing to keep."""

    exit_code = ExitCode.INTERRUPTED


def run_interruptibly(work: Callable[[threading.Event], _Result]) -> _Result:
    """Run work that watches the event it is given; raise here what it raises there."""
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

    previous = signal.signal(signal.SIGINT, _handler(stop))
    try:
        threading.Thread(target=run, name="solve", daemon=True).start()
        done.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
    if errors:
        raise errors[0]
    return results[0]


def _handler(stop: threading.Event) -> Callable[[int, FrameType | None], None]:
    def handle(signum: int, frame: FrameType | None) -> None:
        if stop.is_set():
            # The solver's threads cannot be ended from here, so the process ends without them.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ExitCode.INTERRUPTED)
        stop.set()
        talk("stopping and keeping the best so far; Ctrl-C again gives up at once")

    return handle
