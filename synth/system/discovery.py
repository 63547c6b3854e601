"""Finds the parts of a package that belong to it by being in its folder."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
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


def sources(package: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of each module of a package, without importing the modules."""
    path = importlib.import_module(package).__path__
    for found in pkgutil.iter_modules(path, f"{package}."):
        spec = importlib.util.find_spec(found.name)
        if not found.ispkg and spec is not None and isinstance(spec.loader, InspectLoader):
            yield found.name.rpartition(".")[2], spec.loader.get_source(found.name) or ""
