"""Every published schedule as a generator: one file each, found by being in this folder.

A family's module defines `FAMILY`; nothing else needs to know of it.
"""

import importlib
import pkgutil
from functools import cache

from synth.errors import SynthError
from synth.families.family import Family
from synth.schedule.model import Schedule

__all__ = ["Family", "families", "generate"]


@cache
def families() -> dict[str, Family]:
    """All families by name."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        family = getattr(importlib.import_module(f"{__name__}.{module.name}"), "FAMILY", None)
        if family is not None:
            found[family.name] = family
    return found


def generate(name: str, num_ranks: int, num_micro_batches: int) -> Schedule:
    """Make a family's schedule.

    Raises:
        SynthError: no such family, or numbers that its definition does not admit.
    """
    known = families()
    if name not in known:
        raise SynthError(f"family {name!r} is unknown; known: {', '.join(sorted(known))}")
    if num_ranks < 1 or num_micro_batches < 1:
        raise SynthError(
            f"{name} needs at least one rank and one micro-batch, "
            f"given {num_ranks} and {num_micro_batches}"
        )
    return known[name].schedule(num_ranks, num_micro_batches)
