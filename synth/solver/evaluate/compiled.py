"""Functions that Numba compiles. Its import takes half a second and waits for their first use."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast

from synth.system.late_module import LateModule

if TYPE_CHECKING:
    from synth.solver.evaluate import walk_kernel as kernel
else:
    kernel = LateModule("synth.solver.evaluate.walk_kernel")

__all__ = ["compiled", "kernel"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Compile a function at its first call; the code is kept on disk, if a folder can be written.

    Where Numba is not installed the function runs as it is, which takes a hundred times as long.
    """
    if find_spec("numba") is None:
        return function
    from numba import njit

    try:
        dispatcher = njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        dispatcher = njit(function)
    return cast(_Function, dispatcher)
