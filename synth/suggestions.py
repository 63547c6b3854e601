"""The known name that a mistyped one was meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return the end of a message with the name most like the given one, or nothing."""
    similar = get_close_matches(given, list(known), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""
