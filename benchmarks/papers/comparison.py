"""A table of printed and own figures: its rows, and its Markdown."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results_file import markdown_table
from synth.errors import SynthError

FORMAT = "synth-papers-benchmark-1"
_PRINTED = Path(__file__).with_name("printed.csv")


class Row(NamedTuple):
    """An own figure.

    Attributes:
        row: its name, as `printed.csv` has it.
        number: the figure; None: of words, which are compared case by case.
        equal: the cases in which the printed words hold, of `cases`.
    """

    row: str
    number: float | None
    equal: int | None = None
    cases: int | None = None


@dataclass(frozen=True)
class PaperTable:
    """A table.

    Attributes:
        name: what `printed.csv` and the command call it.
        about: one sentence for the line above it.
        measure: yields its rows.
        is_slow: it takes more than ten seconds.
    """

    name: str
    about: str
    measure: Callable[[], Iterable[Row]]
    is_slow: bool = False


class Printed(NamedTuple):
    """A line of `printed.csv`; `tolerance` None: no agreement is promised."""

    text: str
    tolerance: float | None
    source: str
    reason: str

    @property
    def number(self) -> float | None:
        """The printed number; None: it is words."""
        try:
            return float(self.text)
        except ValueError:
            return None


def counted(row: str, cases: Iterable[bool]) -> Row:
    """Return the row of words that hold in some of several cases."""
    listed = list(cases)
    return Row(row, None, sum(listed), len(listed))


@cache
def printed_rows() -> dict[str, dict[str, Printed]]:
    """Return the printed figures by table and row."""
    found: dict[str, dict[str, Printed]] = {}
    with _PRINTED.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            tolerance = float(line["tolerance"]) if line["tolerance"] else None
            one = Printed(line["printed"], tolerance, line["source"], line["reason"])
            found.setdefault(line["table"], {})[line["row"]] = one
    return found


def difference(printed: Printed, row: Row) -> float:
    """Return the relative difference of two numbers, or the share of cases that differ."""
    if row.number is None:
        assert row.equal is not None and row.cases
        return 1 - row.equal / row.cases
    if printed.number is None:
        raise SynthError(f"{row.row} is printed as words, {printed.text!r}; no number is compared")
    if not printed.number:
        return abs(row.number)
    return row.number / printed.number - 1


def agrees(printed: Printed, row: Row) -> bool:
    """True if the difference is within the tolerance, or none is promised.

    A tolerance of 0 asks for the printed digits of a number.
    """
    if printed.tolerance is None:
        return True
    if printed.tolerance or row.number is None:
        return abs(difference(printed, row)) <= printed.tolerance
    return f"{row.number:.{_digits(printed.text)}f}" == printed.text


def made(document: Mapping[str, Any]) -> str:
    """Return a saved run in Markdown."""
    lines = printed_rows()[document["suite"].removeprefix("papers-")]
    heads = ("row", "printed", "synth", "difference", "source", "reason")
    rows = (Row(**row) for row in document["rows"])
    return markdown_table(heads, (_cells(lines[row.row], row) for row in rows))


def _cells(printed: Printed, row: Row) -> Iterator[str]:
    apart = difference(printed, row)
    yield from (row.row, printed.text)
    if row.number is None:
        yield f"{row.equal} of {row.cases}"
        yield "none" if not apart else f"{row.cases and row.cases - (row.equal or 0)} cases"
    else:
        yield f"{row.number:.{_digits(printed.text) or 1}f}"
        yield "none" if agrees(printed._replace(tolerance=0), row) else f"{100 * apart:+.0f} %"
    yield from (printed.source, printed.reason)


def _digits(number: str) -> int:
    """Return the decimals of a printed number."""
    return len(number.partition(".")[2])
