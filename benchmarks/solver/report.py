"""Rows as lines, as JSON and as the tables of the documentation."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.solver.case import Row, Suite
from synth.errors import SynthError

_FORMAT = "synth-solver-benchmark"
_HEAD = ("problem", "published that fits", "value", "bound", "gap %", "gain %", "s", "first s")
_LINE = "{:<30} {:>22} {:>10} {:>10} {:>6} {:>6} {:>7} {:>7}  {}"


def head() -> str:
    """The line above the rows."""
    return _LINE.format(*_HEAD, "found by (stopped by)")


def line(row: Row) -> str:
    """A row for people, with what the suite adds at its end."""
    added = "  ".join(f"{name}: {_shown(cell)}" for name, cell in row.columns.items())
    found = f"{row.found_by or 'nothing'} ({row.stopped_by})  {added}"
    return _LINE.format(*_cells(asdict(row)), found).rstrip()


def save(path: Path, suite: Suite, rows: Sequence[Row], workers: int | None) -> None:
    """Write what is there so far, with where it was measured; all at once or not at all."""
    document = {
        "format": _FORMAT,
        "suite": suite.name,
        "about": suite.about,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "workers": workers or os.cpu_count(),
        "python": platform.python_version(),
        "ortools": version("ortools"),
        "rows": [asdict(row) for row in rows],
    }
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def markdown(path: Path) -> str:
    """A saved suite as a table of the documentation.

    Raises:
        SynthError: the file cannot be read, or is none that `save` wrote.
    """
    document = _load(path)
    rows: list[dict[str, Any]] = document["rows"]
    added = list(dict.fromkeys(name for row in rows for name in row["columns"]))
    heads = [*_HEAD, "found by", "stopped by", *added]
    lines = [_markdown_line(heads), _markdown_line(["---"] * len(heads))]
    for row in rows:
        ends = [_shown(row["found_by"]), row["stopped_by"]]
        cells = [*_cells(row), *ends, *(_shown(row["columns"].get(name, "")) for name in added)]
        lines.append(_markdown_line(cells))
    where = (
        f"`{document['suite']}`: {document['about']} Measured with {document['workers']} workers "
        f"on {document['cores']} cores ({document['processor']}), Python {document['python']}, "
        f"OR-Tools {document['ortools']}."
    )
    return "\n".join([where, "", *lines])


def _load(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SynthError(
            f"{path} cannot be read ({error}); give a file that --json wrote"
        ) from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise SynthError(f"{path} is no answer of this benchmark; give a file that --json wrote")
    return document


def _cells(row: dict[str, Any]) -> list[str]:
    """The columns that every suite has, in the order of `_HEAD`."""
    family = f"{row['family']} {row['family_us']}" if row["family"] else "none"
    columns = ("value_us", "bound_us", "gap_percent", "gain_percent", "wall_s", "first_s")
    return [row["label"], family, *(_shown(row[name]) for name in columns)]


def _shown(cell: int | float | str | None) -> str:
    if cell is None:
        return "–"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _processor() -> str:
    """The processor's name, or at least its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (entry.partition(":")[2].strip() for entry in lines if entry.startswith("model name"))
    return next(names, platform.machine())
