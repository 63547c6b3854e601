"""Bounding beside the search, in a thread of its own: CP-SAT computes outside Python's lock."""

import queue
import threading
from collections.abc import Callable, Iterator

from synth.certificate import Proven


class Background:
    """Runs through bounds in a thread; whoever owns it collects what came in the meantime.

    Args:
        bounds: made and run through in the thread; given what tells it to stop.
    """

    def __init__(self, bounds: Callable[[Callable[[], bool]], Iterator[Proven]]) -> None:
        self._found: queue.SimpleQueue[Proven | BaseException] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bounds,), daemon=True)
        self._thread.start()

    def _run(self, bounds: Callable[[Callable[[], bool]], Iterator[Proven]]) -> None:
        try:
            for bound in bounds(self._stopped.is_set):
                self._found.put(bound)
        except BaseException as error:  # handed to the thread that can raise it
            self._found.put(error)

    def collect(self, take: Callable[[Proven], None]) -> None:
        """Hand on what has been found, in the calling thread."""
        while not self._found.empty():
            found = self._found.get()
            if isinstance(found, BaseException):
                raise found
            take(found)

    def stop(self) -> None:
        """Tell it to end."""
        self._stopped.set()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether all bounds are in."""
        return not self._thread.is_alive()
