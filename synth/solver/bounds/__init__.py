"""Lower bounds of a problem: one file each, found by being in this folder.

A bound's module defines `BOUND`. Only the order of the bounds (`bound_policy`) names them.
"""

from functools import cache

from synth.solver.bounds.bound import LowerBound
from synth.solver.options import Part
from synth.system.discovery import discover


@cache
def bounds() -> dict[Part, type[LowerBound]]:
    """All kinds of bounds, by the part of the search that they are."""
    return {bound.part: bound for _, bound in discover(__name__, "BOUND")}
