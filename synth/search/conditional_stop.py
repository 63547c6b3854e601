"""A stop that an answer of the search can set, too."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class ConditionalStop(threading.Event, Generic[Answer]):
    """A stop event that is also set once an answer satisfies a condition.

    Args:
        stop: another stop event, which counts too.
        is_shown: the condition, called with every answer.
    """

    def __init__(self, stop: threading.Event, is_shown: Callable[[Answer], bool]) -> None:
        super().__init__()
        self._stop, self._is_shown = stop, is_shown

    def watch(self, answer: Answer) -> None:
        """Set the event if an answer satisfies the condition."""
        if self._is_shown(answer):
            self.set()

    def is_set(self) -> bool:
        """Return True if stopped, for either reason."""
        return super().is_set() or self._stop.is_set()
