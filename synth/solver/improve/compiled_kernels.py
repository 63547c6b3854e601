"""Compiling all kernels, and loading what was compiled before."""

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import numpy as np

from synth.costs.costs import uniform_costs
from synth.solver.evaluate.compiled import await_compiled, kernel_files
from synth.solver.evaluate.op_table import OpTable
from synth.solver.improve.annealing import Walk
from synth.solver.improve.compiled_lists import CompiledBuilder
from synth.solver.improve.priority_rules import variants
from synth.solver.infeasibility import serial_schedule
from synth.solver.instance.memory_models import relaxed_memory
from synth.solver.modulo.building_blocks import BuildingBlocks
from synth.solver.problem import Problem

_LOGGER = logging.getLogger(__name__)


def are_usable(*, waits: bool, should_stop: Callable[[], bool]) -> bool:
    """Return True if kernels are compiled and can be loaded; begin to compile them if they are not.

    Args:
        waits: wait until they are compiled.
        should_stop: ends the wait; polled every few hundredths of a second.
    """
    return await_compiled(lambda: not waits or should_stop()) and is_loadable()


def are_fast(*, waits: bool, should_stop: Callable[[], bool]) -> bool:
    """Return True if kernels are usable and compiled: without Numba they run as plain Python."""
    is_compiled = find_spec("numba") is not None
    return is_compiled and are_usable(waits=waits, should_stop=should_stop)


@cache
def is_loadable() -> bool:
    """Return True if compiled kernels can be loaded; remove them if not, to be compiled anew."""
    try:
        compile_kernels()
    except Exception as error:  # Numba unpickles its files, which may raise anything
        _LOGGER.warning("the compiled local search is damaged, and is left out once: %r", error)
        kernel_files.remove_compiled()
        return False
    return True


def compile_kernels() -> None:
    """Compile all kernels, by a short use of each; later ones find them on disk."""
    costs = uniform_costs(2, forward_us=1, backward_input_us=1, backward_weight_us=1)
    problem = Problem.linear(costs, 2)
    found = Walk(OpTable(problem), serial_schedule(problem), [None, None], [True, True])
    found.run(100, 1.0, 1.0, np.random.default_rng(0))
    instance = relaxed_memory(problem)
    CompiledBuilder(instance, problem.objective).build(next(variants(instance)))
    next(BuildingBlocks(instance, 1, 0, lambda _: None, lambda: False).run(0, 1_000))
    kernel_files.note_compiled()
