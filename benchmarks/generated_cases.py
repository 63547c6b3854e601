"""Shared by benchmarks of generated pipelines: their command line, and cells of their tables."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from itertools import product
from typing import Protocol

from synth.search.outcome import relative_gap


class SolvedCase(Protocol):
    """A row with a plan and the best published schedule; None: nothing was found, or nothing fits.

    Times are makespans in µs.
    """

    @property
    def plan_us(self) -> int | None: ...

    @property
    def published_us(self) -> int | None: ...


def case_parser(name: str, documentation: str, *, cases: int, limit_s: float) -> ArgumentParser:
    """Return a parser of `--cases`, `--first` and `--limit`, to which others may be added.

    Args:
        name: of the benchmark's module.
        documentation: of the module; its first line is shown.
        cases: the default number of cases.
        limit_s: the default limit of a search.
    """
    parser = ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=documentation.splitlines()[0]
    )
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--limit", type=float, default=limit_s, help="seconds of a search")
    return parser


def numbers_of(asked: Namespace) -> range:
    """Return the numbers of the cases that a command line asks for."""
    return range(asked.first, asked.first + asked.cases)


def numbers_and_seeds(asked: Namespace) -> Iterator[tuple[int, int]]:
    """Yield each case's number with each seed of the search."""
    return product(numbers_of(asked), range(asked.seeds))


def plan_cells(value_us: int | None, bound_us: int, digits: int = 2) -> tuple[str, str]:
    """Return a plan's time in seconds, and its gap to the bound in percent."""
    if value_us is None:
        return "none", ""
    return f"{value_us / 1e6:.3f}", f"{100 * relative_gap(value_us, bound_us):.{digits}f}"


def published_cell(value_us: int | None, name: str | None) -> str:
    """Return the time of the best published schedule in seconds, and its name."""
    return "none fits" if value_us is None else f"{value_us / 1e6:.3f} {name}"


def is_above(row: SolvedCase) -> bool:
    """Return True if a published schedule fits, and no plan was found or it is longer."""
    return row.published_us is not None and (row.plan_us is None or row.plan_us > row.published_us)
