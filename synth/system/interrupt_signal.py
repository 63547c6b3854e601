"""Ctrl-C while a process starts another one."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread, and in the processes that it starts meanwhile.

    Ctrl-C in a terminal reaches every process of the group, also one that has not yet come to
    ignore it. A blocked signal stays pending, and ignoring it discards it (POSIX, `sigaction`).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
