"""The runner: one suite to a table on stdout, failures to stderr and into the exit code."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.solver import __doc__ as about
from benchmarks.solver.case import Row, Suite, measure
from benchmarks.solver.report import head, line, markdown, save
from benchmarks.solver.suites import SUITES
from synth.errors import SynthError
from synth.solve import Objective


def main(given: list[str] | None = None) -> int:
    """Run a suite or print saved ones; 1 if an answer was wrong, 2 if the request was."""
    arguments = _parser().parse_args(given)
    try:
        if arguments.markdown:
            print("\n\n".join(markdown(path) for path in arguments.markdown))
            return 0
        return _run(SUITES[arguments.suite], arguments)
    except SynthError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    suites = "\n".join(f"  {name:<14} {suite.about}" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.solver",
        description=(about or "").splitlines()[0],
        epilog=f"suites:\n{suites}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("suite", nargs="?", choices=SUITES)
    what.add_argument("--markdown", nargs="+", type=Path, metavar="JSON", help="print saved suites")
    parser.add_argument("--time-limit", type=float, help="seconds per row, instead of each row's")
    parser.add_argument("--workers", type=int, help="of the solver; default: all cores")
    parser.add_argument("--only", default="", help="rows that have this in their name")
    parser.add_argument("--objective", type=Objective.parse, help="for every row")
    parser.add_argument("--json", type=Path, help="where to save the rows, after each of them")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Refuse now what would fail after the first row."""
    if arguments.time_limit is not None and arguments.time_limit <= 0:
        raise SynthError(f"the time limit is {arguments.time_limit:g} s; give more than 0")
    if arguments.json is not None and not arguments.json.absolute().parent.is_dir():
        raise SynthError(f"{arguments.json} lies in no folder that exists; make it first")


def _run(suite: Suite, arguments: argparse.Namespace) -> int:
    _check(arguments)
    cases = [case for case in suite.cases() if arguments.only in case.label]
    if not cases:
        raise SynthError(
            f"no row of {suite.name} has {arguments.only!r} in its name; try --only ''"
        )
    rows: list[Row] = []
    print(head())
    for case in cases:
        if arguments.objective is not None:
            problem = replace(case.problem, objective=arguments.objective)
            case = replace(case, problem=problem, known=None)
        limit_s = arguments.time_limit or case.time_limit_s or suite.time_limit_s
        rows.append(measure(case, limit_s, arguments.workers))
        print(line(rows[-1]), flush=True)
        for failure in rows[-1].failures:
            print(f"{case.label}: {failure}", file=sys.stderr, flush=True)
        if arguments.json is not None:
            save(arguments.json, suite, rows, arguments.workers)
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
