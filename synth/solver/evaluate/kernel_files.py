"""The compiled code of all kernels on disk, beside a mark that says that nothing is missing."""

import hashlib
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from synth.solver.evaluate import (
    block_arrays,
    block_kernel,
    list_arrays,
    list_kernel,
    memory_kernel,
    move_arrays,
    move_kernel,
    op_table,
    order_arrays,
    path_arrays,
    path_kernel,
    time_kernel,
    walk_kernel,
)

_DISPATCHERS: tuple[Any, ...] = (walk_kernel.walk, list_kernel.build, block_kernel.anneal)


def note_compiled() -> None:
    """Note on disk that all functions are compiled."""
    mark = _mark()
    if mark is not None:
        mark.touch()


def remove_compiled() -> None:
    """Remove the compiled code of all kernels from the disk."""
    folder = Path(_DISPATCHERS[0].stats.cache_path)
    for pattern in ("*_kernel.*.nb[ci]", "*-*.compiled"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def is_compiled() -> bool:
    """Return True if nothing is left to compile, or there is no Numba to compile with."""
    if not hasattr(_DISPATCHERS[0], "stats") or all(each.signatures for each in _DISPATCHERS):
        return True
    mark = _mark()
    return mark is not None and mark.exists()


def _mark() -> Path | None:
    """Return the file that says: this code is compiled, by these versions for this processor."""
    if not hasattr(_DISPATCHERS[0], "stats") or _DISPATCHERS[0].stats.cache_path is None:
        return None
    made_by = (version("numba"), sys.version, platform.processor())
    orders = (time_kernel, memory_kernel, move_kernel, path_kernel, walk_kernel)
    arrays = (order_arrays, move_arrays, path_arrays, list_arrays, block_arrays)
    modules = (*orders, list_kernel, block_kernel, op_table, *arrays)
    code = b"".join(Path(str(module.__file__)).read_bytes() for module in modules)
    digest = hashlib.sha256(code + repr(made_by).encode()).hexdigest()[:16]
    return Path(_DISPATCHERS[0].stats.cache_path) / f"kernels-{digest}.compiled"
