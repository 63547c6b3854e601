"""Messages of commands and of the library, on stderr."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from synth.option_names import named
from synth.system.terminal_text import escaped

# This variable of the environment silences messages, also those of the processes of a run.
QUIET = "SYNTH_QUIET"


def talk(text: str) -> None:
    """Write a message to stderr, unbuffered, unless messages are silenced."""
    if not is_quiet():
        warn(text)


def warn(text: str) -> None:
    """Write a warning to stderr, unbuffered."""
    print(escaped(named(text)), file=sys.stderr, flush=True)


def is_quiet() -> bool:
    """Return True if all messages but warnings and errors are silenced."""
    return bool(os.environ.get(QUIET))


@contextmanager
def silenced() -> Iterator[None]:
    """Print no messages but warnings and errors, also in processes that begin meanwhile."""
    before = os.environ.get(QUIET)
    os.environ[QUIET] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[QUIET]
        else:
            os.environ[QUIET] = before
