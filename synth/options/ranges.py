"""Ranges of numbers in options: ranks, layers."""

import re

# Most digits of the number of a rank, a stage or a layer.
MOST_DIGITS = 6


def read_ranges(text: str, count: int) -> tuple[int, ...] | None:
    """Read numbers below a count, `3-8,10` with both ends; None: not understood, or too large."""
    ranges = [_range(part) for part in text.split(",")]
    known = [one for one in ranges if one is not None and one.stop <= count]
    if len(known) < len(ranges):
        return None
    return tuple(sorted({index for one in known for index in one}))


def _range(text: str) -> range | None:
    """`3-8`, both ends included, or `3`; None: neither."""
    number = rf"(\d{{1,{MOST_DIGITS}}})"
    match = re.fullmatch(rf"\s*{number}\s*(?:-\s*{number}\s*)?", text)
    if match is None:
        return None
    found = range(int(match[1]), int(match[2] or match[1]) + 1)
    return found if found else None
