"""The runner: measures one table, prints and saves its rows."""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.page_tables import ALL, FORMAT
from benchmarks.page_tables import __doc__ as about
from benchmarks.results_file import Run, parse_without_seeds, report_rows
from synth.errors import SynthError
from synth.system.processors import num_processors


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a table; 1 if one of its commands failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.page_tables",
        description=about,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("table", choices=ALL)
    asked = parse_without_seeds(parser, arguments)
    table = ALL[asked.table]
    run = Run(table.name, table.about, 1, num_processors() if table.has_search else 0, None)
    try:
        report_rows(table.measure(), asked.json, FORMAT, run, table.table)
    except SynthError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
