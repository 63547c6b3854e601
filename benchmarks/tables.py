"""Fill the tables of README, docs/papers.md and notes from the saved results, or check them.

    python -m benchmarks.tables            rewrites README.md, docs/papers.md, notes/*.md
    python -m benchmarks.tables --check    names the tables that differ, and exits with 1

A table stands between two comments, of which the first names a file of `benchmarks/results`:

    <!-- results: solver-table unproven -->
    <!-- /results -->

The word behind the name chooses one of several tables of the same file: `unproven` has the rows of
the solver whose gap is not 0 with every seed.
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks import (
    auto_placement,
    cpsat_calls,
    data_parallel_table,
    emulated_networks,
    emulation,
    estimates_table,
    late_gradients_table,
    look_ahead,
    offloading,
    page_tables,
    papers,
    plain_annealing,
    realistic_suite,
    slow_links,
    split_cost_table,
    strads_rivals,
    strads_table,
    tight_caps,
    time_limits,
    unequal_ranks,
    v_limits,
    weight_passing,
    weight_passing_papers,
    weight_search,
)
from benchmarks.executor import report as executor
from benchmarks.executor import weights_table
from benchmarks.results_file import Table, load, origin
from benchmarks.solver import report
from synth.errors import SynthError

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "papers.md", *sorted((ROOT / "notes").glob("*.md")))
RESULTS = ROOT / "benchmarks" / "results"
# The makers of a document's tables, by its format and by the word behind its name.
_TABLES: dict[str, Mapping[str, Table]] = {
    module.FORMAT: {"": module.table}
    for module in (
        auto_placement,
        data_parallel_table,
        emulated_networks,
        emulation,
        estimates_table,
        executor,
        late_gradients_table,
        look_ahead,
        offloading,
        plain_annealing,
        realistic_suite,
        slow_links,
        split_cost_table,
        tight_caps,
        time_limits,
        unequal_ranks,
        v_limits,
        weight_passing,
        weight_search,
        weights_table,
    )
} | {
    module.FORMAT: module.TABLES
    for module in (
        cpsat_calls,
        page_tables,
        papers,
        report,
        strads_rivals,
        strads_table,
        weight_passing_papers,
    )
}
_PLACE = re.compile(r"(<!-- results: (\S+)(?: (\S+))? -->\n).*?(<!-- /results -->)", re.DOTALL)


def filled(text: str, results: Path = RESULTS) -> str:
    """A page with all its tables made anew.

    Raises:
        SynthError: it names a file that does not exist or cannot be read, or a table that the file
            does not have.
    """

    def made(place: re.Match[str]) -> str:
        document = load(results / f"{place[2]}.json", _TABLES)
        makers, word = _TABLES[document["format"]], place[3] or ""
        if word not in makers:
            known = ", ".join(f"{place[2]} {each}".strip() for each in makers)
            raise SynthError(f"{place[2]} has no table {word!r}; give one of: {known}")
        return f"{place[1]}{origin(document)}\n\n{makers[word](document)}\n{place[4]}"

    return _PLACE.sub(made, text)


def main(given: list[str] | None = None) -> int:
    """Rewrite or check the pages; 1 if one differs, 2 if results are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args(given)
    differing = []
    try:
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            if (new := filled(text)) != text:
                differing.append(page.relative_to(ROOT))
                if not arguments.check:
                    page.write_text(new, encoding="utf-8")
    except SynthError as error:
        print(error, file=sys.stderr)
        return 2
    for name in differing:
        print(f"{name} {'differs from the results' if arguments.check else 'rewritten'}")
    return int(arguments.check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
