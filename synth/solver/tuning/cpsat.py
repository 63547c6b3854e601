"""Numeric constants of CP-SAT: calls and worker processes, and the sizes of the exact model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CpsatTuning:
    """Calls of CP-SAT, and the worker processes that serve them."""

    # Clock seconds per deterministic second of a small model, roughly.
    clock_s_per_deterministic_s: float = 8.0
    # Shortest time limit; with less CP-SAT does not even take the hint.
    shortest_limit_s: float = 0.01
    # Tolerance of a bound, which CP-SAT gives as a float although values are integers.
    bound_tolerance: float = 1e-6
    # Interval at which a call asks whether to stop.
    poll_s: float = 0.05
    # Time for a worker to obey a stop before it is killed; its results have been reported by then.
    stop_grace_s: float = 1.0
    # Time for a worker to end once its pipes are closed.
    exit_s: float = 2.0
    # Bytes from the end of a dead worker's stderr that are logged.
    stderr_tail_bytes: int = 4_000


@dataclass(frozen=True)
class ExactModelTuning:
    """Forms of the memory limit, and the size of disjunctive choices."""

    # Ops of a rank with several stages up to which memory is counted by pairwise order literals;
    # beyond, it is a reservoir. Literals grow with the square (solver-notes, "reservoir").
    most_counted_ops: int = 120
    # The same in models of a few ranks, forward-spacing models among them.
    most_counted_ops_of_few_ranks: int = 400
    # The same in idle-time models.
    most_counted_ops_of_idle_time: int = 1_000
    # The same for one rank of a window.
    most_counted_ops_of_window: int = 32
    # Passing pairs of one model. With more it takes long to build, so ranks are left out.
    most_passing_pairs: int = 60_000


CPSAT = CpsatTuning()
EXACT_MODEL = ExactModelTuning()
