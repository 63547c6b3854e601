"""Ending in good order on SIGTERM, as clusters send it before they take a machine away.

The step that runs is finished, a checkpoint is saved, and the run ends. Ranks that `synth run` has
started learn of its signal by a file; inside torchrun, which passes the signal on, by their own. A
second signal ends a process at once.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_FILE = "stop"


class StopRequest:
    """Whether this rank was asked to stop behind the running step."""

    def __init__(self, folder: Path) -> None:
        """Look for what the launcher leaves in the run's folder."""
        self._file = folder / _FILE
        self._signalled = False

    def __call__(self) -> bool:
        """Whether it was."""
        return self._signalled or self._file.exists()

    def _set(self) -> None:
        self._signalled = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM as such a request, too."""
        with _on_first_sigterm(self._set):
            yield


@contextmanager
def passing_on_sigterm(folder: Path, at_second: Callable[[], None]) -> Iterator[None]:
    """In the launcher: tell its ranks of a SIGTERM; `at_second` is called for another one."""

    def ask() -> None:
        (folder / _FILE).touch()
        signal.signal(signal.SIGTERM, lambda number, frame: at_second())

    with _on_first_sigterm(ask):
        yield


@contextmanager
def _on_first_sigterm(act: Callable[[], None]) -> Iterator[None]:
    """Only a main thread may handle signals; elsewhere they are somebody else's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        act()

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
