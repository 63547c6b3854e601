"""Heuristics that find schedules and improve them, found by being in this folder.

An improver's module defines `IMPROVER`. Only the table of steps (`synth.solve.policy`) names them.
"""

import importlib
import pkgutil
from functools import cache

from synth.solve.improve.improver import Improver
from synth.solve.options import Part


@cache
def improvers() -> dict[Part, type[Improver]]:
    """All improvers, by the part of the search that they are."""
    found: dict[Part, type[Improver]] = {}
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        improver = getattr(importlib.import_module(module.name), "IMPROVER", None)
        if improver is not None:
            found[improver.part] = improver
    return found
