"""Checks of option values for all commands."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from synth.errors import SynthError

# The largest integer that any option takes; some options have smaller limits.
MOST = (1 << 31) - 1

_SHOWN_DIGITS = 40

_EMPTY_VALUE = re.compile(r"(--[\w-]+)=")


def is_file_name(text: str) -> bool:
    """True if a text names a plan file, not a published schedule; existing files come first."""
    path = Path(text)
    return path.exists() or bool(path.suffix) or len(path.parts) > 1


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse empty words of a command line: as a path they would mean the current folder.

    Args:
        words: the command line, beginning with the program's name.

    Raises:
        SynthError: one is empty, or the value of an option is.
    """
    for before, word in pairwise(words):
        attached = _EMPTY_VALUE.fullmatch(word)
        if attached is None and word:
            continue
        option = attached[1] if attached else before
        place = f"the value of {option}" if option.startswith("-") else f"the word after {option}"
        raise SynthError(
            f"{place} is empty; give one, or leave it out (is a variable of the shell not set?)"
        )


def refuse_absurd(values: Mapping[str, object]) -> None:
    """Refuse NaN, infinite and absurdly large numbers, of the options of a command by name."""
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, float) and not math.isfinite(value):
            raise SynthError(f"{option} {value} is no finite number; give one")
        if isinstance(value, int) and abs(value) > MOST:
            digits = str(value)
            given = digits if len(digits) <= _SHOWN_DIGITS else f"{digits[:_SHOWN_DIGITS]}…"
            raise SynthError(f"{option} {given} is too large; give at most {MOST}")
