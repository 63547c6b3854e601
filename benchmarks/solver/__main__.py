"""The runner: one suite to a table on stdout, failures to stderr and into the exit code."""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

from benchmarks.results_file import Run, check_request
from benchmarks.solver import __doc__ as about
from benchmarks.solver.case import Case, Row, Suite, measure
from benchmarks.solver.report import head, line, markdown, resumed, save
from benchmarks.solver.suites import SUITES
from synth.errors import SynthError
from synth.objective import Objective


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
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--objective", type=Objective.parse, help="for every row")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="each row with 0 to N-1")
    parser.add_argument("--json", type=Path, help="where to save the rows, after each of them")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    """Refuse now what would fail after the first row."""
    if arguments.time_limit is not None and arguments.time_limit <= 0:
        raise SynthError(f"the time limit is {arguments.time_limit:g} s; give more than 0")
    check_request(arguments.seeds, arguments.json)
    if arguments.resume and arguments.json is None:
        raise SynthError("--resume goes on with a file; give --json with it")


def _run(suite: Suite, arguments: argparse.Namespace) -> int:
    _check(arguments)
    cases = _selected(suite, arguments.only)
    if not cases:
        raise SynthError(
            f"no row of {suite.name} has {arguments.only!r} in its name; try --only ''"
        )
    run = Run(suite.name, suite.about, arguments.seeds, arguments.workers, arguments.time_limit)
    rows: list[Row] = resumed(arguments.json, run) if arguments.resume else []
    known = {(row.label, row.seed): row for row in rows}
    print(head())
    for seed, case in product(range(arguments.seeds), cases):
        if (case.label, seed) in known:
            continue
        if _changes_nothing(case, known.values()):
            print(f"{case.label}: not run; it takes no step in {case.compared_with!r}", flush=True)
            continue
        if arguments.objective is not None:
            problem = replace(case.problem, objective=arguments.objective)
            case = replace(case, problem=problem, known=None)
        limit_s = arguments.time_limit or case.time_limit_s or suite.time_limit_s
        compared_with = known.get((case.compared_with or "", seed))
        rows.append(measure(case, limit_s, arguments.workers, seed, compared_with))
        known[case.label, seed] = rows[-1]
        print(line(rows[-1]), flush=True)
        for failure in rows[-1].failures:
            print(f"{case.label}: {failure}", file=sys.stderr, flush=True)
        if arguments.json is not None:
            save(arguments.json, run, rows)
    return int(any(row.failures for row in rows))


def _selected(suite: Suite, only: str) -> list[Case]:
    """The cases with a text in their labels, and those that they are compared with."""
    cases = list(suite.cases())
    labels = {case.label for case in cases if only in case.label}
    labels |= {case.compared_with for case in cases if case.label in labels and case.compared_with}
    return [case for case in cases if case.label in labels]


def _changes_nothing(case: Case, rows: Iterable[Row]) -> bool:
    """Return True if the parts left out took no step with all parts, with any seed so far."""
    taken = [row.parts for row in rows if row.label == case.compared_with]
    return bool(case.without and taken) and all(map(case.without.isdisjoint, taken))


if __name__ == "__main__":
    sys.exit(main())
