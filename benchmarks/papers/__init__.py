"""Papers' printed figures beside those of this program, which makes the tables of docs/papers.md.

    python -m benchmarks.papers bubbles --json benchmarks/results/papers-bubbles.json

`printed.csv` has a line for each figure:

- `table` and `row`: the table that it is compared in, and its name there,
- `printed`: a number, or in words a closed form or a claim that is compared case by case,
- `tolerance`: the largest relative difference (0: exact, all cases); empty: none is promised,
- `source`: the paper, and the place in it,
- `reason`: why the two differ, if they do.

`tables` has one module per subject, whose `TABLES` are found by being there. The rows do not depend
on the machine, and `tests/test_benchmark_papers.py` measures them anew.
"""

from benchmarks.papers.comparison import FORMAT, PaperTable, made
from benchmarks.results_file import Table
from synth.system.discovery import discover

__all__ = ["ALL", "FORMAT", "TABLES"]

ALL: dict[str, PaperTable] = {
    table.name: table
    for _, tables in discover("benchmarks.papers.tables", "TABLES")
    for table in tables
}

TABLES: dict[str, Table] = {"": made}
