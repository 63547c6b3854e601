"""Partitions in words, with the schedules that have them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import fill

# Width in columns that fits any terminal.
_COLUMNS = 80

# Runs of stages with equally many layers up to which they are counted instead of listed.
_MOST_RUNS = 3


def by_partition(named: Iterable[tuple[Sequence[int], str]]) -> list[str]:
    """Return a line for each partition, with the names of the schedules that have it."""
    names: dict[str, list[str]] = {}
    for sizes, name in named:
        names.setdefault(runs_text(sizes), []).append(name)
    return [f"{sizes}:  {', '.join(those)}" for sizes, those in names.items()]


def listed(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a list, wrapped and indented."""
    for line in lines:
        yield fill(line, _COLUMNS, initial_indent="  ", subsequent_indent="      ")


def runs_text(sizes: Sequence[int]) -> str:
    """Return layers of each stage with runs of equal numbers together: 8 stages of 1, 8 of 2."""
    runs = [(size, len(list(those))) for size, those in groupby(sizes)]
    if len(runs) > _MOST_RUNS:
        return ",".join(map(str, sizes))
    (size, count), *others = runs
    first = f"{count} stage{'s' * (count > 1)} of {size}"
    return ", ".join([first, *(f"{count} of {size}" for size, count in others)])
