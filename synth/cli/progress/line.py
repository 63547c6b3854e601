"""A line at the foot of a terminal: what a command is doing, and how much longer it may take.

It is rewritten several times a second by a thread of its own, and is erased before anything else is
printed and when the command ends. Without a terminal, or with `--quiet`, there is none.
"""

import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

from synth.system.messages import is_quiet
from synth.system.terminal_text import escaped

# Seconds between two drawings, and of silence before the first one.
_EVERY_S, _AFTER_S = 0.25, 0.3

# To the beginning of the terminal's line, and erase it.
_ERASE = "\r\x1b[2K"

_COLUMNS = 80


class ProgressLine:
    """The line, with the state that it shows; `tell` changes it, from any thread."""

    def __init__(self, name: str = "") -> None:
        """Take the name of the command; the line begins with `start`."""
        self._name, self._text, self._until = name, "", math.inf
        self._expected: float | None = None
        self._began = self._printed_at = time.monotonic()
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._terminal: TextIO | None = None
        self._is_drawn, self._is_within_line = False, False

    def tell(self, text: str, until: float | None = None, expected: float | None = None) -> None:
        """Say what is being done.

        Args:
            until: the moment (`time.monotonic`) by which it ends at the latest; None: as before.
            expected: the moment at which it ends by an estimate; None: there is no estimate.
        """
        self._text, self._expected = text, expected
        self.limit(until)

    def limit(self, until: float | None) -> None:
        """Say by when the command ends at the latest (`time.monotonic`); None: as said before."""
        self._until = self._until if until is None else until

    def text(self, now: float) -> str:
        """Return the line at a moment: the time that it took, the time left, and what is done."""
        line = f"{self._name} {now - self._began:.0f} s"
        if self._expected is not None:
            line += f", about {max(0.0, self._expected - now):.0f} s left"
        elif self._until < math.inf:
            line += f", at most {max(0.0, self._until - now):.0f} s left"
        return f"{line}: {self._text}" if self._text else line

    def start(self) -> None:
        """Draw the line on stderr's terminal from now on."""
        self._terminal = sys.stderr
        sys.stdout, sys.stderr = _Above(sys.stdout, self), _Above(sys.stderr, self)
        self._thread = threading.Thread(target=self._keep_drawing, name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Erase the line and draw it no more; its thread has ended, so this process may fork."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._erase()
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, _Above):
                setattr(sys, name, stream.below)

    def print_above(self, stream: TextIO, text: str) -> int:
        """Write to a stream where the line was, which is drawn again later."""
        with self._lock:
            self._erase()
            self._printed_at = time.monotonic()
            self._is_within_line = bool(text) and not text.endswith("\n")
            return stream.write(text)

    def _keep_drawing(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with self._lock:
                now = time.monotonic()
                is_time = self._is_drawn or now - self._printed_at >= _AFTER_S
                if is_time and not self._is_within_line and not self._ended.is_set():
                    self._draw(now)

    def _draw(self, now: float) -> None:
        columns = shutil.get_terminal_size((_COLUMNS, 24)).columns
        self._write(_ERASE + escaped(self.text(now))[: columns - 1])
        self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            self._write(_ERASE)
            self._is_drawn = False

    def _write(self, text: str) -> None:
        assert self._terminal is not None
        self._terminal.write(text)
        self._terminal.flush()


class _Above:
    """A stream whose text is printed above the line."""

    def __init__(self, below: TextIO, line: ProgressLine) -> None:
        self.below, self._line = below, line

    def write(self, text: str) -> int:
        """Write where the line was."""
        return self._line.print_above(self.below, text)

    def __getattr__(self, name: str) -> Any:
        """Everything else is as in the stream."""
        return getattr(self.below, name)


_LINE: ContextVar[ProgressLine | None] = ContextVar("LINE", default=None)


def current_line() -> ProgressLine:
    """Return the line of the running command; without one, a line that is never drawn."""
    return _LINE.get() or ProgressLine()


@contextmanager
def progress_line(name: str) -> Iterator[None]:
    """Show the line of a command while it runs, if stderr is a terminal."""
    line = ProgressLine(name)
    token = _LINE.set(line)
    if sys.stderr.isatty() and not is_quiet():
        line.start()
    try:
        yield
    finally:
        line.stop()
        _LINE.reset(token)
