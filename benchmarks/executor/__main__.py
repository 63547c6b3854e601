"""Ratios of step time, processor time and peak bytes, this executor's over PyTorch's runtime.

    python -m benchmarks.executor                       # all cases, tiny tensors: the overhead
    python -m benchmarks.executor --size medium         # kernels of milliseconds
    python -m benchmarks.executor --ranks 2 --micro-batches 8 --stages mlp --schedules 1f1b
    python -m benchmarks.executor --no-native --json benchmarks/results/executor.json

All cases are 120, each given `--seconds` (4) for its rounds and about as much to begin and to be
compared; the last line says how long it took. A busy machine takes several times as long.

Below 1 is ours better. Both get the same stages, order and data; losses and gradients are compared.
`own` is processor time beyond that of the same stages called in a plain loop in the same round:
the executor, what it adds to autograd, and the transfers.
`against` native is PyTorch's own class for the schedule, such as `Schedule1F1B`,
else its `_PipelineScheduleRuntime`, which replays our order.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product

import torch

from benchmarks.executor.case import SIZES, Case
from benchmarks.executor.processes import run_cases
from benchmarks.executor.report import FORMAT, HEADINGS, Row, cells, summarize
from benchmarks.executor.theirs import has_native
from benchmarks.results_file import Run, parse_without_seeds, save

_SCHEDULES = ("1f1b", "zb-h1", "solved")
_STAGES = ("linear", "mlp", "attention")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases asked for, and print and save a row for each."""
    options = _parse(arguments)
    request = Run("executor", _about(options), 1, 0, None)
    rows: list[Row] = []
    start = time.monotonic()
    print(f"torch {torch.__version__}, gloo, size {SIZES[options.size]}, {options.rounds} rounds")
    widths = [9, 5, 5, 3, 9, 4, 7, 5, 5, 5, 5, 6, 6, 6, 6, 8, 8, 8, 8]
    _print(HEADINGS, widths)
    for num_ranks in options.ranks:
        cases = [case for case in _cases(options) if case.num_ranks == num_ranks]
        listed = [(case, _runtimes(case, options.native)) for case in cases]
        found = run_cases(
            listed,
            num_ranks,
            options.rounds,
            seconds=options.seconds,
            eager=not options.all_gloo,
        )
        for case, ranks in zip(cases, found, strict=True):
            for row in summarize(case, ranks):
                rows.append(row)
                _print(cells(row), widths)
            if options.json is not None:
                save(options.json, FORMAT, request, map(asdict, rows))
    print(f"{(time.monotonic() - start) / 60:.0f} minutes")
    return 0


def _about(options: argparse.Namespace) -> str:
    size = SIZES[options.size]
    counts = " and ".join(map(str, sorted(options.micro_batches)))
    return (
        f"synth over PyTorch with {counts} micro-batches of {size.rows} × {size.length} × "
        f"{size.width} float32, at most {options.rounds} rounds or {options.seconds:g} s each."
    )


def _cases(options: argparse.Namespace) -> list[Case]:
    flags = {"yes": [True], "no": [False], "both": [False, True]}
    splits: dict[str, list[bool | None]] = {name: [*each] for name, each in flags.items()}
    splits["own"] = [None]
    return [
        Case(schedule, num_ranks, count, stages, checkpoint, split, SIZES[options.size])
        for num_ranks, stages, checkpoint, split, schedule, count in product(
            options.ranks,
            options.stages,
            flags[options.checkpoint],
            splits[options.split],
            options.schedules,
            options.micro_batches,
        )
        if stages != "linear" or not checkpoint
        if schedule != "zb-h1" or split is not False  # with BW it is 1F1B
    ]


def _runtimes(case: Case, native: bool) -> list[str]:
    rivals = ["pytorch", "native"] if native and has_native(case) else ["pytorch"]
    return ["ours", *rivals, "plain"]


def _print(row: list[str] | tuple[str, ...], widths: list[int]) -> None:
    pairs = zip(row, widths, strict=True)
    print("  ".join(cell.rjust(width) for cell, width in pairs), flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="benchmarks.executor", description=about)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--schedules", nargs="+", default=list(_SCHEDULES), help="families too")
    parser.add_argument("--stages", nargs="+", choices=_STAGES, default=["mlp", "attention"])
    parser.add_argument("--checkpoint", choices=["yes", "no", "both"], default="both")
    parser.add_argument(
        "--split",
        choices=["yes", "no", "both", "own"],
        default="both",
        help="B and W apart; own: as the schedule has them",
    )
    parser.add_argument("--native", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--all-gloo", action="store_true", help="no sockets for small messages")
    parser.add_argument("--rounds", type=int, default=15, help="at most, of each case")
    parser.add_argument("--seconds", type=float, default=4.0, help="for the rounds of a case")
    return parse_without_seeds(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
