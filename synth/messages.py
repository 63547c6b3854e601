"""Messages of commands and of the library, on stderr."""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from synth.terminal_text import escaped

if TYPE_CHECKING:
    from synth.measurement_conditions import Conditions


# Rewords messages that name options of the command line, where they are called otherwise.
REWORDED: ContextVar[Callable[[str], str]] = ContextVar("REWORDED", default=str)


def talk(text: str) -> None:
    """Write a message to stderr, unbuffered."""
    print(escaped(REWORDED.get()(text)), file=sys.stderr, flush=True)


def warn_of(conditions: "Conditions | None", profile: str) -> None:
    """Warn if times were measured under doubtful conditions."""
    warning = None if conditions is None else conditions.warning(profile)
    if warning is not None:
        talk(warning)
