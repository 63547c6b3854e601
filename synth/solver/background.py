"""A thread that proves bounds during the search; CP-SAT computes in processes of its own."""

import queue
import threading
from collections.abc import Callable, Iterator

from synth.schedule.files.certificate import ProvenBound


class Background:
    """Iterates over bounds in a thread; its owner collects those found so far.

    Args:
        bounds: called in the thread with a function that says when to stop.
    """

    def __init__(self, bounds: Callable[[Callable[[], bool]], Iterator[ProvenBound]]) -> None:
        self._found: queue.SimpleQueue[ProvenBound | BaseException] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bounds,), daemon=True)
        self._thread.start()

    def _run(self, bounds: Callable[[Callable[[], bool]], Iterator[ProvenBound]]) -> None:
        try:
            for bound in bounds(self._stopped.is_set):
                self._found.put(bound)
        except BaseException as error:  # handed to the thread that can raise it
            self._found.put(error)

    def collect(self, take: Callable[[ProvenBound], None]) -> None:
        """Hand over the bounds found since the last call, in the calling thread.

        Raises:
            BaseException: whatever ended the thread.
        """
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
        """True if all bounds are found."""
        return not self._thread.is_alive()
