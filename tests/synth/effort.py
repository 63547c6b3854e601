"""The effort of searches in tests, counted in the solver's own steps: the same on every machine."""

from synth.solver.options import SolveOptions

# For what ends by itself, long before: a limit that no slow machine reaches.
HOURS_S = 3600.0


def counted(seconds: float = 10, workers: int = 1, seed: int = 0, gap: float = 0.0) -> SolveOptions:
    """A limit in CP-SAT's deterministic seconds instead of the clock's."""
    return SolveOptions(seconds, gap, workers, seed, deterministic=True)
