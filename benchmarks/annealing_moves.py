"""Moves of simulated annealing per second of processor time, and how orders are timed.

    python -m benchmarks.annealing_moves

From published schedules on the 1.5 B profile of the zero-bubble paper with 8 ranks, without a
memory limit that binds: the longest paths follow a move, or the order is timed anew from the first
op that the move can affect. Both make the same moves. `plain` is the first without Numba. The
temperatures are those of a round's first and last moves.
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
from synth.solver.evaluate import (
    compiled,
    memory_kernel,
    path_kernel,
    time_kernel,
    walk_kernel,
)
from synth.solver.evaluate.op_table import OpTable
from synth.solver.improve.annealing import Walk
from synth.solver.improve.compiled_kernels import compile_kernels
from synth.solver.problem import Problem

_NUM_RANKS, _AMPLE_BYTES = 8, 10**12
_TEMPERATURES_US = (1e3, 50.0)
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


def _walk(case: _Case, *, times_anew: bool = False) -> Walk:
    where = placement("linear" if len(case.sizes) == _NUM_RANKS else "v", _NUM_RANKS)
    costs = partition_costs(Profile.load(find("zb-1.5b-p8-m24")), case.sizes)
    problem = Problem(costs, where, case.num_micro_batches)
    schedule = generate(case.family, _NUM_RANKS, case.num_micro_batches)
    table = OpTable(problem)
    buffered = replace(schedule, buffering=Buffering(2, 2))
    # A walk that may move activations to the host's memory times its orders anew.
    host_share = 1e-12 if times_anew else 0.0
    headrooms: list[int | None] = [_AMPLE_BYTES] * _NUM_RANKS
    return Walk(table, buffered, headrooms, [True] * table.num_copies, host_share)


def _moves_per_s(walk: Walk, num_moves: int, temperature_us: float) -> float:
    rng = np.random.default_rng(0)
    walk.run(num_moves // 10, temperature_us, 1.0, rng)
    began_s = time.process_time()
    walk.run(num_moves, temperature_us, 1.0, rng)
    return num_moves / (time.process_time() - began_s)


@contextmanager
def _plain() -> Iterator[None]:
    """Let the functions run as they are written."""
    with ExitStack() as stack:
        for module in (time_kernel, memory_kernel, path_kernel, walk_kernel):
            seen = getattr(compiled, module.__name__.rpartition(".")[2], module)
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
        for temperature_us in _TEMPERATURES_US:
            walk = _walk(case)
            followed = _moves_per_s(walk, _MOVES[0], temperature_us)
            anew = _moves_per_s(_walk(case, times_anew=True), _MOVES[0], temperature_us)
            with _plain():
                plain = _moves_per_s(_walk(case), _MOVES[1], temperature_us)
            rates = (f"{rate:,.0f}" for rate in (followed, anew, plain))
            ratio = f"{followed / anew:.1f}"
            what = (case.family, f"{walk.table.num_ops:,}", f"{temperature_us:g} µs")
            lines.append((*what, *rates, ratio))
    head = ("order", "ops", "temperature", "paths followed", "timed anew", "plain", "ratio")
    print(markdown_table(head, lines))


if __name__ == "__main__":
    main()
