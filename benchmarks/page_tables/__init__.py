"""Tables of single commands: each runs the commands that a page prints, and saves their answers.

    python -m benchmarks.page_tables frameworks --json benchmarks/results/frameworks.json

`pages` has one module per page, whose `TABLES` are found by being there. A table has

- the commands, as its page prints them (a test compares them),
- `measure`, which runs them by `python -m synth … --format json` and yields rows in base units
  (microseconds, bytes),
- `table`, which makes Markdown of the saved rows; its texts are in the code, its numbers never.

`benchmarks.tables` puts the tables into the pages. A table is `exact` if its numbers depend neither
on the machine nor on time; a test makes those rows anew and compares them with the saved ones.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.page_tables.page_table import FORMAT, PageTable
from benchmarks.results_file import Table
from synth.errors import SynthError
from synth.system.discovery import discover

__all__ = ["ALL", "FORMAT", "TABLES"]


ALL: dict[str, PageTable] = {
    table.name: table
    for _, tables in discover("benchmarks.page_tables.pages", "TABLES")
    for table in tables
}


def _table(document: Mapping[str, Any]) -> str:
    if (known := ALL.get(document["suite"])) is None:
        raise SynthError(f"no table is named {document['suite']!r}; known: {', '.join(ALL)}")
    return known.table(document)


TABLES: dict[str, Table] = {"": _table}
