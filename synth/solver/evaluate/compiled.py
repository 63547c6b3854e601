"""Functions that Numba compiles. Its import takes half a second and waits for their first use."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from synth.solver.tuning import EVALUATION
from synth.system.late_module import LateModule

if TYPE_CHECKING:
    from synth.solver.evaluate import (
        block_kernel,
        kernel_files,
        list_kernel,
        memory_kernel,
        time_kernel,
        walk_kernel,
    )
else:
    block_kernel, kernel_files, list_kernel, memory_kernel, time_kernel, walk_kernel = (
        LateModule(f"synth.solver.evaluate.{name}")
        for name in (
            "block_kernel",
            "kernel_files",
            "list_kernel",
            "memory_kernel",
            "time_kernel",
            "walk_kernel",
        )
    )

__all__ = [
    "await_compiled",
    "block_kernel",
    "compiled",
    "kernel_files",
    "list_kernel",
    "memory_kernel",
    "time_kernel",
    "walk_kernel",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a function at its first call; the code is kept on disk, if a folder can be written.

    Where Numba is not installed the function runs as it is, which takes much longer.
    """
    if find_spec("numba") is None:
        return function
    from numba import njit

    try:
        dispatcher = njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        dispatcher = njit(function)
    return cast(_Function, dispatcher)


@cache
def _compile_process() -> subprocess.Popen[bytes] | None:
    """Begin to compile kernels in a process of its own; None: they are, or it cannot begin.

    The process goes on if the search ends: the next search finds the code on disk. It removes older
    code first: Numba does not notice that a constant of another module has changed.
    """
    if kernel_files.is_compiled():
        return None
    above = str(Path(__file__).parents[3])
    program = (
        f"import sys; sys.path.insert(0, {above!r}); "
        f"from synth.solver.evaluate.compiled import kernel_files; "
        f"from synth.solver.improve.compiled_kernels import compile_kernels; "
        f"kernel_files.remove_compiled(); compile_kernels()"
    )
    with suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return None


def await_compiled(until: Callable[[], bool]) -> bool:
    """Return True if kernels are compiled; begin that, and wait for it until a condition holds.

    Args:
        until: polled every few hundredths of a second.
    """
    process = _compile_process()
    while process is not None and process.poll() is None:
        if until():
            return False
        with suppress(subprocess.TimeoutExpired):
            process.wait(EVALUATION.compiling_look_s)
    return True
