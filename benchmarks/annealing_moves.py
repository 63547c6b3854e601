"""Moves of simulated annealing per second of processor time: compiled by Numba, and as Python.

    python -m benchmarks.annealing_moves

Both run the same code and the same moves, from published schedules on the 1.5 B profile of the
zero-bubble paper with 8 ranks, without a memory limit that binds.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.results_file import markdown_table
from synth.costs.partition_costs import partition_costs
from synth.families import generate
from synth.profile import Profile
from synth.profiles import find
from synth.schedule.model import Buffering
from synth.schedule.placements import placement
from synth.solver.evaluate import compiled, memory_kernel, time_kernel, walk_kernel
from synth.solver.evaluate.op_table import OpTable
from synth.solver.improve.annealing import Walk
from synth.solver.improve.compiled_kernels import compile_kernels
from synth.solver.problem import Problem

_NUM_RANKS, _AMPLE_BYTES, _TEMPERATURE_US = 8, 10**12, 1e3
# Moves that are timed: compiled, and plain.
_MOVES = (10_000, 100)


class _Case(NamedTuple):
    family: str
    num_micro_batches: int
    sizes: tuple[int, ...]


_CASES = (
    _Case("zb-h1", 16, (3,) * 8),
    _Case("zb-h1", 40, (3,) * 8),
    _Case("zb-v", 32, (2,) * 8 + (1,) * 8),
)


def _walk(case: _Case) -> Walk:
    where = placement("linear" if len(case.sizes) == _NUM_RANKS else "v", _NUM_RANKS)
    costs = partition_costs(Profile.load(find("zb-1.5b-p8-m24")), case.sizes)
    problem = Problem(costs, where, case.num_micro_batches)
    schedule = generate(case.family, _NUM_RANKS, case.num_micro_batches)
    table = OpTable(problem)
    buffered = replace(schedule, buffering=Buffering(2, 2))
    return Walk(table, buffered, [_AMPLE_BYTES] * _NUM_RANKS, [True] * table.num_copies)


def _moves_per_s(walk: Walk, num_moves: int) -> float:
    began_s = time.process_time()
    walk.run(num_moves, _TEMPERATURE_US, 1.0, np.random.default_rng(0))
    return num_moves / (time.process_time() - began_s)


@contextmanager
def _plain() -> Iterator[None]:
    """Let the functions run as they are written."""
    kernels = (time_kernel, memory_kernel, walk_kernel)
    late = (compiled.time_kernel, compiled.memory_kernel, compiled.walk_kernel)
    with ExitStack() as stack:
        for module, seen in zip(kernels, late, strict=True):
            for name, function in dict(vars(module)).items():
                if hasattr(function, "py_func"):
                    stack.enter_context(patch.object(module, name, function.py_func))
                    stack.enter_context(patch.object(seen, name, function.py_func))
        yield


def main() -> None:
    """Print the moves per second of each case."""
    compile_kernels()
    lines = []
    for case in _CASES:
        walk = _walk(case)
        fast = _moves_per_s(walk, _MOVES[0])
        with _plain():
            slow = _moves_per_s(_walk(case), _MOVES[1])
        row = (f"{fast:,.0f}", f"{slow:,.0f}", f"{fast / slow:.0f}")
        lines.append((case.family, f"{walk.table.num_ops:,}", *row))
    print(markdown_table(("order", "ops", "compiled", "plain", "ratio"), lines))


if __name__ == "__main__":
    main()
