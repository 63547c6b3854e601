"""Rows as lines, as JSON and as the tables of the documentation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import results_file
from benchmarks.provenance import provenance
from benchmarks.results_file import Run, SavedRow, load, markdown_table, origin
from benchmarks.solver.case import Row
from synth.errors import SynthError

FORMAT = "synth-solver-benchmark-2"  # 1 had no seeds, commit and date
_HEAD = ("problem", "published that fits", "value", "bound", "gap %", "gain %", "s", "first s")
# Beside them, in tables of several seeds.
_OF_SEEDS = ("values", "proven by")
_LINE = "{:<30} {:>22} {:>10} {:>10} {:>6} {:>6} {:>7} {:>7}  {}"


def head() -> str:
    """The line above the rows."""
    return _LINE.format(*_HEAD, "found by (stopped by)")


def line(row: Row) -> str:
    """Format a row for reading, with the suite's own columns at its end."""
    added = "  ".join(f"{name}: {_shown(cell)}" for name, cell in row.columns.items())
    found = f"{row.found_by or 'nothing'} ({row.stopped_by})  {added}"
    return _LINE.format(*_cells([asdict(row)]), found).rstrip()


def save(path: Path, run: Run, rows: Sequence[Row]) -> None:
    """Write the rows with the commit and the machine they come from."""
    results_file.save(path, FORMAT, run, map(asdict, rows))


def resumed(path: Path, run: Run) -> list[Row]:
    """The rows that a file has; none if there is no file.

    Raises:
        SynthError: the file answers another request, or another commit.
    """
    if not path.exists():
        return []
    document = load(path, {FORMAT})
    for name, asked in {**asdict(run), "commit": provenance()["commit"]}.items():
        if document.get(name) != asked:
            raise SynthError(
                f"{path} was measured with {name} {document.get(name)}, not {asked}; "
                f"leave out --resume to measure all rows anew"
            )
    return [
        Row(
            **{
                **row,
                "cell": row["cell"] and tuple(row["cell"]),
                "failures": tuple(row["failures"]),
                "parts": tuple(row["parts"]),
            }
        )
        for row in document["rows"]
    ]


def markdown(path: Path) -> str:
    """A saved suite as a table, under a paragraph on where it was measured."""
    document = load(path, {FORMAT})
    return f"{origin(document)}\n\n{table(document)}"


def table(document: Mapping[str, Any]) -> str:
    """A saved run's rows in Markdown, those of several seeds as one with medians.

    Cases that name a line and a column make a table of values with their gaps, and times to the gap
    if they have them.
    """
    rows: list[SavedRow] = document["rows"]
    labels = dict.fromkeys(row["label"] for row in rows)
    grouped = [[row for row in rows if row["label"] == label] for label in labels]
    pivoted = bool(rows) and all(row["cell"] for row in rows)
    return _pivoted(grouped) if pivoted else _listed(grouped)


def unproven(document: Mapping[str, Any]) -> str:
    """The table without the cases whose gap is 0 with every seed."""
    rows: list[SavedRow] = document["rows"]
    labels = {row["label"] for row in rows if row["gap_percent"] != 0}
    return table({"rows": [row for row in rows if row["label"] in labels]})


TABLES = {"": table, "unproven": unproven}


def _listed(grouped: Iterable[Sequence[SavedRow]]) -> str:
    groups = list(grouped)
    added = list(dict.fromkeys(name for rows in groups for name in rows[0]["columns"]))
    has_seeds = any(len(rows) > 1 for rows in groups)
    heads = [*_HEAD, *(_OF_SEEDS if has_seeds else ()), "found by", "stopped by", *added]
    lines = []
    for rows in groups:
        spread = _of_seeds(rows) if has_seeds else []
        own = [_shown(_middle(row["columns"].get(name, "") for row in rows)) for name in added]
        ends = [_shown(_middle(row[name] for row in rows)) for name in ("found_by", "stopped_by")]
        lines.append([*_cells(rows), *spread, *ends, *own])
    return markdown_table(heads, lines)


def _of_seeds(rows: Sequence[SavedRow]) -> list[str]:
    """The least and the largest value of the seeds, and how many of them proved theirs."""
    values = [row["value_us"] for row in rows if row["value_us"] is not None]
    least, largest = min(values, default=None), max(values, default=None)
    proven = sum(row["gap_percent"] == 0 for row in rows)
    return [
        _shown(least) if least == largest else f"{least} to {largest}",
        f"{proven} of {len(rows)}",
    ]


def _pivoted(grouped: Sequence[Sequence[SavedRow]]) -> str:
    timed = any(row.get("to_gap_s") is not None for rows in grouped for row in rows)
    cells = {tuple(rows[0]["cell"]): _pivoted_cell(rows, timed) for rows in grouped}
    names = list(dict.fromkeys(name for name, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    lines = ([name, *(cells.get((name, column), "") for column in columns)] for name in names)
    return markdown_table(["", *columns], lines)


def _pivoted_cell(rows: Sequence[SavedRow], timed: bool) -> str:
    value, gap = (
        _shown(_middle(row[name] for row in rows)) for name in ("value_us", "gap_percent")
    )
    time = f", {_median_s(row['to_gap_s'] for row in rows)}" if timed else ""
    return f"{value} ({gap}){time}"


def _median_s(times_s: Iterable[float | None]) -> str:
    """The median of times, where None is later than all others."""
    median_s = median(math.inf if time_s is None else time_s for time_s in times_s)
    return _shown(None) if math.isinf(median_s) else f"{median_s:.1f} s"


def _cells(rows: Sequence[SavedRow]) -> list[str]:
    """The columns that every suite has, in the order of `_HEAD`."""
    first = rows[0]
    family = f"{first['family']} {first['family_us']}" if first["family"] else "none"
    columns = ("value_us", "bound_us", "gap_percent", "gain_percent", "wall_s", "first_s")
    middle = (_shown(_middle(row[name] for row in rows)) for name in columns)
    return [first["label"], family, *middle]


def _middle(cells: Iterable[int | float | str | None]) -> int | float | str | None:
    """The median of numbers; of anything else the most frequent."""
    found = list(cells)
    numbers = [cell for cell in found if isinstance(cell, int | float)]
    if len(numbers) < len(found):
        return max(found, key=found.count)
    middle = median(numbers)
    return round(middle) if all(isinstance(cell, int) for cell in numbers) else middle


def _shown(cell: int | float | str | None) -> str:
    if cell is None:
        return "–"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
