"""A table of a page: its commands, how they are measured, and its Markdown."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.results_file import Table

FORMAT = "synth-page-tables-benchmark-1"


class Measured(Protocol):
    """A row: a named tuple."""

    def __iter__(self) -> Iterator[Any]: ...

    def _asdict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class PageTable:
    """One table.

    Attributes:
        name: of the table and of its file of results.
        page: the page, relative to the repository's root.
        about: one sentence for the line above the table.
        commands: the commands that the page prints, word for word.
        measure: runs the commands and yields the rows.
        table: makes Markdown of a saved run.
        has_search: True if the rows depend on a search, and so on the processors.
        is_exact: True if the rows depend on the code alone.
    """

    name: str
    page: str
    about: str
    commands: tuple[str, ...]
    measure: Callable[[], Iterable[Measured]]
    table: Table
    has_search: bool = False
    is_exact: bool = False
