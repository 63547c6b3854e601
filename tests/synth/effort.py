"""The effort of searches in tests, counted in the solver's own steps: the same on every machine."""

from dataclasses import replace

from synth.solver.options import Part, SolveOptions

# For what ends by itself, long before: a limit that no slow machine reaches.
HOURS_S = 3600.0


def counted(seconds: float = 10, workers: int = 1, seed: int = 0, gap: float = 0.0) -> SolveOptions:
    """A limit in CP-SAT's deterministic seconds instead of the clock's."""
    return SolveOptions(seconds, gap, workers, seed, deterministic=True)


def exact_alone(seconds: float = 10) -> SolveOptions:
    """The exact model, begun from published schedules: the quickest way to a small optimum.

    It needs no bound, so that it can be compared with all of them.
    """
    return replace(counted(seconds), without=frozenset(Part) - {Part.EXACT, Part.FAMILIES})
