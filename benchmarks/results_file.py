"""Files of results: the request, the commit and the machine that answered it, and the rows."""

import json
from argparse import ArgumentParser, Namespace, RawTextHelpFormatter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.provenance import provenance
from synth.errors import SynthError

# A row as its file holds it: lists for tuples.
SavedRow = dict[str, Any]

# Makes a table in Markdown of a saved run, of which it reads the rows.
Table = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Run:
    """The run that rows belong to.

    `workers` is None if a search has all cores, and 0 if nothing is searched. `time_limit_s` is
    None if each row has its own, or none.
    """

    suite: str
    about: str
    num_seeds: int
    workers: int | None
    time_limit_s: float | None


def save(path: Path, file_format: str, run: Run, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows with the commit and the machine they come from; all at once or not at all."""
    document = {"format": file_format, **asdict(run), **provenance(), "rows": [*map(dict, rows)]}
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


class _Row(Protocol):
    """A named tuple."""

    def __iter__(self) -> Iterator[Any]: ...

    def _asdict(self) -> dict[str, Any]: ...


_AnyRow = TypeVar("_AnyRow", bound=_Row)


def report_rows(
    measured: Iterable[_AnyRow],
    path: Path | None,
    file_format: str,
    run: Run,
    table: Table,
    line: Callable[[_AnyRow], Iterable[object]] = iter,
) -> list[_AnyRow]:
    """Print and save each row as soon as it is measured, then print the table of all.

    Args:
        measured: measures the rows.
        path: where to save them; None: nowhere.
        file_format: the format of that file.
        run: the run that they belong to.
        table: makes the table of a saved run.
        line: what is printed of a row; by default all of it.
    """
    rows: list[_AnyRow] = []
    for row in measured:
        rows.append(row)
        print(*line(row), sep=" | ", flush=True)
        if path is not None:
            save(path, file_format, run, (one._asdict() for one in rows))
    print(f"\n{table({'rows': [row._asdict() for row in rows]})}")
    return rows


def all_tables(tables: Mapping[str, Table]) -> Table:
    """Makes several tables of a saved run, each under its name."""

    def made(document: Mapping[str, Any]) -> str:
        return "\n\n".join(f"{name}:\n\n{one(document)}" for name, one in tables.items())

    return made


def load(path: Path, formats: Container[str]) -> dict[str, Any]:
    """A saved run.

    Raises:
        SynthError: the file cannot be read, or is of none of the formats.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SynthError(
            f"{path} cannot be read ({error}); give a file that --json wrote"
        ) from None
    if not isinstance(document, dict) or document.get("format") not in formats:
        raise SynthError(f"{path} is no answer of this benchmark; give a file that --json wrote")
    return document


def check_request(num_seeds: int, path: Path | None) -> None:
    """Refuse now what would fail after the first row.

    Raises:
        SynthError: no seed, or a file in a folder that does not exist.
    """
    if num_seeds < 1:
        raise SynthError(f"{num_seeds} seeds asked for; give at least 1")
    if path is not None and not path.absolute().parent.is_dir():
        raise SynthError(f"{path} lies in no folder that exists; make it first")


def parser_of(documentation: str | None) -> ArgumentParser:
    """Return a parser whose help is the documentation of a benchmark's module."""
    return ArgumentParser(description=documentation, formatter_class=RawTextHelpFormatter)


def parse_request(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    """Parse a command line that also has `--seeds` and `--json`; exit with 2 if it is wrong."""
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="each with 0 to N-1")
    return parse_without_seeds(parser, arguments)


def parse_without_seeds(parser: ArgumentParser, arguments: Sequence[str] | None) -> Namespace:
    """Parse a command line that also has `--json`; exit with 2 if it is wrong."""
    parser.add_argument("--json", type=Path, help="where to save the rows, after each of them")
    asked = parser.parse_args(arguments)
    try:
        check_request(getattr(asked, "seeds", 1), asked.json)
    except SynthError as error:
        parser.error(str(error))
    return asked


def origin(document: Mapping[str, Any]) -> str:
    """Say which code, machine and effort a saved run is of."""
    seeds = document["num_seeds"]
    workers, library = _effort(document)
    return (
        f"`{document['suite']}`: {document['about']}\nMeasured at commit {document['commit']}"
        f"{workers} on {document['cores']} cores "
        f"({document['processor']}), Python {document['python']}, {library}"
        + (f", {seeds} seeds: medians" if seeds > 1 else "")
        + "."
    )


def _effort(document: Mapping[str, Any]) -> tuple[str, str]:
    """The workers of a search, and the library that the figures depend on."""
    if document["workers"] == 0:
        return "", f"torch {document['torch']}"
    workers = document["workers"] or document["cores"]
    return f" with {workers} worker{'s' * (workers > 1)}", f"OR-Tools {document['ortools']}"


def markdown_table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(heads)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))
