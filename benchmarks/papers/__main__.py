"""The runner: makes one table, prints and saves its rows."""

import argparse
import sys
from collections.abc import Sequence

from benchmarks.papers import ALL, FORMAT
from benchmarks.papers import __doc__ as about
from benchmarks.papers.comparison import made
from benchmarks.results_file import Run, parse_without_seeds, report_rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description=about,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("table", choices=ALL)
    asked = parse_without_seeds(parser, arguments)
    table = ALL[asked.table]
    suite = f"papers-{table.name}"
    run = Run(suite, table.about, 1, 0, None)
    report_rows(
        table.measure(), asked.json, FORMAT, run, lambda found: made({"suite": suite, **found})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
