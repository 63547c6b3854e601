"""Functions that Numba compiles; without Numba they run as they are written."""

from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _plain(function: _Function) -> _Function:
    return function


try:
    from numba import njit
except ImportError:
    compiled = _plain
    IS_COMPILED = False
else:

    def compiled(function: _Function) -> _Function:
        """Compile a function at its first call; the code is kept on disk."""
        dispatcher: _Function = njit(cache=True)(function)
        return dispatcher

    IS_COMPILED = True
