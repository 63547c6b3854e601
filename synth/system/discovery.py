"""Finds the parts of a package that belong to it by being in its folder."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib.abc import InspectLoader
from typing import Any


def discover(package: str, attribute: str, *, below: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the module name and the attribute of each module of a package that defines it.

    Modules come in alphabetical order, and are imported.

    Args:
        package: the full name of an imported package.
        attribute: the name that marks a module as a part.
        below: True to look in the package's own packages, too.
    """
    path = importlib.import_module(package).__path__
    for found in pkgutil.iter_modules(path, f"{package}."):
        if found.ispkg:
            if below:
                yield from discover(found.name, attribute, below=True)
            continue
        part = getattr(importlib.import_module(found.name), attribute, None)
        if part is not None:
            yield found.name.rpartition(".")[2], part


def import_modules(package: str) -> None:
    """Import each module of a package, in alphabetical order, for what its import registers.

    Args:
        package: the full name of an imported package.
    """
    path = importlib.import_module(package).__path__
    for found in pkgutil.iter_modules(path, f"{package}."):
        importlib.import_module(found.name)


@cache
def docstrings(package: str, ending: str) -> tuple[tuple[str, str], ...]:
    """Return the docstring of each class whose name is that of its module with an ending.

    Docstrings are read from the source. Only a module without source is imported.

    Args:
        package: the full name of an imported package.
        ending: of the classes: with `Request`, `CheckRequest` of the module `check` is one.

    Returns:
        The names of the modules, without the `_` behind a keyword, each with the docstring.
    """
    path = importlib.import_module(package).__path__
    names = [each.name for each in pkgutil.iter_modules(path, f"{package}.") if not each.ispkg]
    parts = {name: name.rpartition(".")[2].rstrip("_") for name in names}
    texts = {part: _docstring(name, f"{part.title()}{ending}") for name, part in parts.items()}
    return tuple((part, text) for part, text in texts.items() if text is not None)


def _docstring(module: str, name: str) -> str | None:
    """Return the docstring of a class of a module; None: there is no such class."""
    spec = importlib.util.find_spec(module)
    loader = None if spec is None else spec.loader
    source = loader.get_source(module) if isinstance(loader, InspectLoader) else None
    if source is None:
        defined = getattr(importlib.import_module(module), name, None)
        return None if defined is None else inspect.getdoc(defined) or ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return inspect.cleandoc(ast.get_docstring(node) or "")
    return None
