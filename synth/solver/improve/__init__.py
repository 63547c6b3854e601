"""Heuristics that find schedules and improve them, found by being in this folder.

An improver's module defines `IMPROVER`. Only the table of steps (`synth.solver.search_steps`)
names them.
"""

from functools import cache

from synth.solver.improve.improver import Improver
from synth.solver.options import Part
from synth.system.discovery import discover


@cache
def improvers() -> dict[Part, type[Improver]]:
    """All improvers, by the part of the search that they are."""
    return {improver.part: improver for _, improver in discover(__name__, "IMPROVER", below=True)}
