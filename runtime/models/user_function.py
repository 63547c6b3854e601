"""A user's function by its address: `path/to/file.py:function` or `package.module:function`.

Errors that its code raises become one line that names the place in it.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from synth.errors import SynthError

from ..seeds import seeded


class UserCodeFailed(SynthError):
    """The user's own code raised an error."""


def run_user_code(address: str, action: Callable[[], Any]) -> Any:
    """Return the result of an action that runs a user's code.

    Raises:
        UserCodeFailed: the action failed; names the address and the line.
    """
    try:
        return action()
    except Exception as error:
        raise failure_of(address, error) from error


def failure_of(address: str, error: Exception, advice: str = "") -> UserCodeFailed:
    """Return an error that names the address, and the line of the user's code."""
    frame = _last_of_the_user(error)
    return UserCodeFailed(
        f"{address} failed: {type(error).__name__}: {error} "
        f"(in {frame.filename}, line {frame.lineno}, {frame.name}){advice}"
    )


def _last_of_the_user(error: Exception) -> traceback.FrameSummary:
    """Return the last place in the user's code before a failure in torch."""
    frames = traceback.extract_tb(error.__traceback__)
    others = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    return next((f for f in reversed(frames) if not f.filename.startswith(others)), frames[-1])


def import_function(address: str) -> Callable[..., Any]:
    """Import a function, and what it imports from its own folder, as `python file.py` would.

    A package is looked for in the current folder first. Code that runs at the import, such as that
    of a whole module's instance, draws the same random numbers in each process.

    Raises:
        SynthError: file, module or function is not there or cannot be imported.
    """
    place, _, name = address.rpartition(":")
    file = Path(os.path.realpath(Path(place).expanduser())) if place.endswith(".py") else None
    _search_first(Path.cwd() if file is None else file.parent)
    with seeded(0):
        module = _from_package(place) if file is None else _from_file(file)
    function = getattr(module, name, None)
    if not callable(function):
        offered = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise SynthError(f"{place} has no function {name!r}; it has {', '.join(offered) or 'none'}")
    found: Callable[..., Any] = function
    return found


def _search_first(folder: Path) -> None:
    """Let modules be imported from a folder, before others."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SynthError(
            f"there is no file {path}; give a path that exists, relative to the current folder"
        )
    # One module per file, under a unique name, so that its classes are the same for all callers
    # that name the file.
    name = f"synth_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SynthError(f"{path} cannot be imported; it needs to be a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SynthError(f"{path} failed to import: {error!r}; fix the file") from error
    return module


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SynthError(
            f"there is no module {error.name!r} (needed for {name!r}); install it, set PYTHONPATH, "
            "or give the path of a .py file"
        ) from error
    except (Exception, SystemExit) as error:
        raise SynthError(f"module {name!r} failed to import: {error!r}; fix it") from error
