"""Tables of plain text: aligned on the decimal point, units in the header."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import fill

from synth.costs.recomputation import FULL, Recomputation, runs

Row = Sequence[str]


def table(header: Row, rows: Sequence[Row]) -> str:
    """Lay out columns: numbers on their decimal points, text from the left, a rule under the head.

    A header may have more lines, such as the unit.
    """
    columns = [_aligned([row[i] for row in rows]) for i in range(len(header))]
    heads = [head.split("\n") for head in header]
    height = max(map(len, heads))
    widths = [
        max([len(line) for line in head] + [len(cell) for cell in cells])
        for head, cells in zip(heads, columns, strict=True)
    ]
    right = [all(map(_is_number, (row[i] for row in rows))) for i in range(len(header))]
    lines = [[(head + [""] * height)[level] for head in heads] for level in range(height)]
    lines.append(["─" * width for width in widths])
    lines += [list(cells) for cells in zip(*columns, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def fitted_table(header: Row, rows: Sequence[Row], width: int | None, spare: Sequence[str]) -> str:
    """Lay out as many columns as a window of a width has room for, and name those left out.

    Args:
        width: in characters; None: there is room for all.
        spare: the names of columns that can be left out, those first that are missed least; names
            that the header does not have are passed over.
    """
    left_out: list[int] = []
    text = table(header, rows)
    whole = _width(text)
    names = [_without_unit(head) for head in header]
    for name in spare:
        if width is None or _width(text) <= width:
            break
        if name not in names:
            continue
        left_out.append(names.index(name))
        kept = [place for place in range(len(header)) if place not in left_out]
        text = table([header[i] for i in kept], [[row[i] for i in kept] for row in rows])
    if not left_out:
        return text
    missing = ", ".join(names[place] for place in sorted(left_out))
    return f"{text}\n(in {whole} columns also: {missing})"


def _without_unit(head: str) -> str:
    """Return the name of a column; its unit, if any, is in a further line."""
    lines = head.strip().split("\n")
    return " ".join(lines[:-1] or lines)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-−+]?\d[\d,]*(\.\d+)?", cell) is not None


def _aligned(cells: Sequence[str]) -> list[str]:
    """Pad numbers on the right, so that right-aligned they meet at the decimal point."""
    decimals = [len(cell) - cell.find(".") if "." in cell else 0 for cell in cells]
    numbers = [_is_number(cell) for cell in cells]
    most = max((d for d, number in zip(decimals, numbers, strict=True) if number), default=0)
    return [
        cell + " " * (most - d) if number else cell
        for cell, d, number in zip(cells, decimals, numbers, strict=True)
    ]


def milliseconds(time_us: float) -> str:
    """Format a time in ms with all its microseconds: `1,457.018`."""
    return f"{time_us / 1000:,.3f}"


def facts(pairs: Mapping[str, str]) -> str:
    """Lay out names and texts, indented, one per line."""
    longest = max(map(len, pairs))
    return "\n".join(f"  {name:<{longest}}  {text}" for name, text in pairs.items())


def size_unit(largest_bytes: float) -> tuple[float, str]:
    """Return a suitable decimal unit for a column of sizes: its bytes and its name."""
    for factor, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest_bytes >= factor:
            return factor, name
    return 1.0, "B"


def time_unit(longest_us: float) -> tuple[float, str]:
    """Return a suitable unit for times: its microseconds and its name."""
    for factor, name in ((1e6, "s"), (1e3, "ms")):
        if longest_us >= factor:
            return factor, name
    return 1.0, "µs"


def places(layers: Iterable[int]) -> str:
    """Format layers as ranges: `4–7, 9`; empty for none."""
    return ", ".join(map(layer_range, runs(layers)))


def recomputed_places(layers: Recomputation) -> str:
    """Format recomputed layers: `4–7, 9`; those under a policy are followed by it: `4–7 (ops)`."""
    return ", ".join(
        places(at) if policy == FULL else f"{places(at)} ({policy})"
        for policy, at in layers.by_policy.items()
    )


def layer_range(layers: range) -> str:
    """Format a range: `4` or `4–7`."""
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}"


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
