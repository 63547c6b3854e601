"""Cost of CP-SAT in a process of its own: small calls per second, and time for large models.

    python -m benchmarks.cpsat_calls --calls 20 --json benchmarks/results/cpsat-calls.json

The same windows (16 ranks, 64 micro-batches, 0.75 of 1F1B's memory, from list scheduling) are
solved by CP-SAT in this process and by a worker process, with the same parameters; both find the
same values. `build` is the time to make a window's model, in both cases. Whole models are only
written as text and read again, which is the overhead of a worker's call.

All times are processor times of both processes together, so that other work on the machine does not
count; the least of some repetitions. Linux only.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from benchmarks.results_file import (
    Run,
    Table,
    all_tables,
    markdown_table,
    parse_without_seeds,
    parser_of,
    report_rows,
)
from benchmarks.solver.suites import table as problems
from synth.solver.cpsat import worker_pool
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.parameters import mind_orders, quiet
from synth.solver.cpsat.restarting_call import ask
from synth.solver.improve.list_scheduling import Builder, search
from synth.solver.improve.lns.window_model import Window, required_by
from synth.solver.instance.earliest_start import EarliestStart
from synth.solver.instance.event_graph import Graph
from synth.solver.instance.memory_models import relaxed_for_fusion, relaxed_memory
from synth.solver.instance.tails import tails_of

FORMAT = "synth-cpsat-calls-benchmark-1"

_SIZES = (24, 48, 96, 192)
_WHOLE = ((8, 32), (16, 64), (32, 128))
_REPETITIONS = 3
_DRAFT_OPS = 5_000
_LIMIT_S = 0.02


class WindowRow(NamedTuple):
    """The mean times of a window of this many ops, built, and solved here and by a worker."""

    ops: int
    build_ms: float
    here_ms: float
    worker_ms: float


class ModelRow(NamedTuple):
    """An exact model of this many ops: built, written as text, and read."""

    ops: int
    text_bytes: int
    build_ms: float
    write_ms: float
    read_ms: float


class Windows:
    """Windows anywhere in one schedule."""

    def __init__(self) -> None:
        problem = problems.problem(16, 64, 0.75)
        instance = relaxed_memory(problem)
        graph, self._ranks = Graph(instance), range(instance.num_ranks)
        draft, *_ = search(Builder(instance, problem.objective), _DRAFT_OPS, 0)
        orders = [graph.numbered(order)[0] for order in draft.orders]
        self._placed = EarliestStart(graph, problem.objective, orders)
        self._tails = list(tails_of(self._placed, problem.objective))
        self._required = required_by(graph)

    def models(self, num_ops: int, number: int) -> list[cp_model.CpModel]:
        """Some of one size."""
        rng, sequence, made = random.Random(num_ops), self._placed.sequence, []
        for _ in range(number):
            first = rng.randrange(len(sequence) - num_ops)
            ops = sequence[first : first + num_ops]
            made.append(Window(self._placed, self._tails, self._required, ops, self._ranks).cp)
        return made


def parameters() -> cp_model.SatParameters:
    """The parameters of windows."""
    made = quiet(0, 1, repeatable=True)
    mind_orders(made)
    made.max_deterministic_time = _LIMIT_S
    return made


def in_this_process(models: Sequence[cp_model.CpModel]) -> list[float]:
    """The values that CP-SAT finds, called as a library."""
    values = []
    for model in models:
        solver = cp_model.CpSolver()
        solver.parameters.copy_from(parameters())
        solver.solve(model)
        values.append(solver.objective_value)
    return values


def in_a_worker(models: Sequence[cp_model.CpModel]) -> list[float]:
    """The same by a worker process."""
    return [ask(model.proto, parameters()).objective for model in models]


def processor_s() -> float:
    """The processor time of this process and its workers so far, in seconds."""
    # Linux derives the id of the processor clock of another process from its pid like this, see
    # clock_getcpuclockid(3).
    clocks = ((~worker << 3) | 2 for worker in worker_pool.processes())
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def least_s(work: Callable[[], object]) -> float:
    """The least processor time of several runs, in seconds."""
    times = []
    for _ in range(_REPETITIONS):
        began_s = processor_s()
        work()
        times.append(processor_s() - began_s)
    return min(times)


def small_calls(calls: int) -> Iterator[WindowRow]:
    """A row for each size of windows."""
    windows = Windows()
    in_a_worker(windows.models(_SIZES[0], 1))
    for num_ops in _SIZES:
        models = windows.models(num_ops, calls)
        if in_this_process(models) != in_a_worker(models):
            raise SystemExit(f"windows of {num_ops} ops: a worker finds other values")
        build_s = least_s(partial(windows.models, num_ops, calls))
        here_s = least_s(partial(in_this_process, models))
        worker_s = least_s(partial(in_a_worker, models))
        yield WindowRow(num_ops, *(1e3 * each / calls for each in (build_s, here_s, worker_s)))


def whole_models() -> Iterator[ModelRow]:
    """A row for each size of exact models."""
    for num_ranks, num_micro_batches in _WHOLE:
        problem = problems.problem(num_ranks, num_micro_batches, 0.75)
        instance = relaxed_for_fusion(problem)
        began_s = time.process_time()
        model = ExactModel(instance, problem.objective, 1_000_000).cp.proto
        build_s, text = time.process_time() - began_s, str(model)
        copy = cp_model.CpModelProto()
        write_s, read_s = least_s(model.__str__), least_s(partial(copy.parse_text_format, text))
        times_ms = (1e3 * each for each in (build_s, write_s, read_s))
        yield ModelRow(instance.num_ops, len(text), *times_ms)


def _windows_table(document: Mapping[str, Any]) -> str:
    """Windows per second, the time to build their models included."""
    rows = [WindowRow(**row) for row in document["rows"] if "worker_ms" in row]
    heads = (
        "ops", "build ms", "in one process, ms", "by a worker, ms", "in one process, per second",
        "by a worker, per second", "factor",
    )  # fmt: skip
    return markdown_table(heads, map(_window_line, rows))


def _window_line(row: WindowRow) -> list[str]:
    here_ms, worker_ms = row.build_ms + row.here_ms, row.build_ms + row.worker_ms
    return [
        str(row.ops),
        *(f"{each:.2f}" for each in (row.build_ms, row.here_ms, row.worker_ms)),
        *(f"{1e3 / each:.0f}" for each in (here_ms, worker_ms)),
        f"{worker_ms / here_ms:.2f}",
    ]


def _models_table(document: Mapping[str, Any]) -> str:
    rows = [ModelRow(**row) for row in document["rows"] if "text_bytes" in row]
    heads = ("ops", "text MB", "build ms", "write ms", "read ms")
    return markdown_table(heads, map(_model_line, rows))


def _model_line(row: ModelRow) -> list[str]:
    times_ms = (row.build_ms, row.write_ms, row.read_ms)
    return [str(row.ops), f"{row.text_bytes / 1e6:.1f}", *(f"{each:.0f}" for each in times_ms)]


TABLES: dict[str, Table] = {"windows": _windows_table, "models": _models_table}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and save a row for each size of windows and of models, then the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--calls", type=int, default=20, help="windows of each size")
    asked = parse_without_seeds(parser, arguments)
    about = (
        f"windows of 16 ranks with 64 micro-batches, {asked.calls} of each size; processor time "
        "of both processes."
    )
    request = Run("cpsat-calls", about, 1, 1, None)
    measured: Iterator[WindowRow | ModelRow] = chain(small_calls(asked.calls), whole_models())
    report_rows(measured, asked.json, FORMAT, request, all_tables(TABLES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
