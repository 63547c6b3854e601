"""A graceful end on SIGTERM, which clusters send before they take a machine away.

The running step is finished, a checkpoint is saved, and the run ends. Ranks that `synth run` has
started learn of its signal by a file; inside torchrun, which passes the signal on, by their own. A
second signal ends a process at once. A signal within a second of the first counts as the same one,
because `timeout` signals a process and then its group.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_FILE = "stop"
_SAME_S = 1.0


class StopRequest:
    """The request to stop this rank after the running step."""

    def __init__(self, folder: Path) -> None:
        """Look for the launcher's note in the run's folder."""
        self._file = folder / _FILE
        self._signalled = False

    def __call__(self) -> bool:
        """True if the rank was asked to stop."""
        return self._signalled or self._file.exists()

    def _set(self) -> None:
        self._signalled = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Treat SIGTERM as such a request, too, within the block."""
        with _on_sigterm(self._set):
            yield


@contextmanager
def passing_on_sigterm(
    folder: Path, at_second: Callable[[], None], now: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """In the launcher: pass SIGTERM on to its ranks; `at_second` is called for another one."""
    with _on_sigterm((folder / _FILE).touch, at_second, now):
        yield


@contextmanager
def _on_sigterm(
    at_first: Callable[[], None],
    at_second: Callable[[], None] | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Handle SIGTERM within the block, if this is the main thread, which alone may.

    Without `at_second`, a second signal has its usual effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first_at: float | None = None

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        if first_at is None:
            first_at = now()
            at_first()
        elif now() - first_at > _SAME_S:
            signal.signal(signal.SIGTERM, before)
            (at_second or _raise_sigterm)()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_sigterm() -> None:
    signal.raise_signal(signal.SIGTERM)
