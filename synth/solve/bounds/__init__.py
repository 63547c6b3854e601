"""Lower bounds of a problem: one file each, found by being in this folder.

A bound's module defines `BOUND`. Only the order of the bounds (`bound_policy`) names them.
"""

import importlib
import pkgutil
from functools import cache

from synth.solve.bounds.bound import LowerBound
from synth.solve.options import Part


@cache
def bounds() -> dict[Part, type[LowerBound]]:
    """All kinds of bounds, by the part of the search that they are."""
    found: dict[Part, type[LowerBound]] = {}
    for module in pkgutil.iter_modules(__path__):
        bound = getattr(importlib.import_module(f"{__name__}.{module.name}"), "BOUND", None)
        if bound is not None:
            found[bound.part] = bound
    return found
