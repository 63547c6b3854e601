"""The best answer of a search so far: kept for all threads, and told only when it is better."""

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar


class Ranked(Protocol):
    """An answer that is better than others, or worse."""

    @property
    def rank_key(self) -> tuple[Any, ...]:
        """The key that orders answers, best first."""


Answer = TypeVar("Answer", bound=Ranked)


class BestSoFar(Generic[Answer]):
    """A listener that keeps the best answer, and passes on each that is better than all before.

    Answers may come from any thread. One at a time is passed on, in the thread that it comes from,
    and none once the listener is closed.
    """

    def __init__(self, listener: Callable[[Answer], None] | None = None) -> None:
        """Begin without an answer.

        Args:
            listener: called with each better answer; None: nobody listens.
        """
        self.best: Answer | None = None
        self._listener = listener
        self._is_closed = False
        # Listeners may offer answers themselves.
        self._lock = threading.RLock()

    def __call__(self, answer: Answer) -> None:
        """Keep an answer and pass it on if it is better."""
        with self._lock:
            is_better = self.best is None or answer.rank_key < self.best.rank_key
            if is_better and not self._is_closed:
                self.best = answer
                if self._listener is not None:
                    self._listener(answer)

    def close(self) -> Answer | None:
        """Stop listening if there is an answer, and return the best."""
        with self._lock:
            self._is_closed = self.best is not None
            return self.best
