"""Numeric constants of the search as a whole."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchTuning:
    """Sizes and shares of the steps (`search_steps.py`)."""

    # Largest problem, in F, B and W. Even published schedules take minutes to generate and verify
    # beyond. With a fourth op for each micro-batch a plan file still holds it (MOST_OPS there).
    most_ops: int = 1_500_000
    # Chain of stage copies on a rank up to which the least peak is found exactly.
    most_copies_of_least_peak: int = 10
    # Factor between two bounds that are reported.
    reported_bound_factor: float = 1.001
    # Share of the time limit kept for robustness at the end.
    robustness_share: float = 0.05
    # Time for simplification and robustness even if the limit has passed.
    grace_s: float = 0.5
    # Ops up to which the exact model gets all the time, and up to which it is tried briefly.
    exact_alone_ops: int = 240
    exact_brief_ops: int = 800
    brief_share: float = 0.15
    # Ops up to which the exact model may soon find or prove something, so that windows leave time
    # for it; the second value is for ranks that hold several stages.
    small_ops: int = 1_600
    small_ops_of_several: int = 800
    # Ops beyond which building the exact model costs more than it repays.
    exact_most_ops: int = 12_000
    # Share of the remaining time for windows, on small and on large problems.
    window_share: float = 0.4
    window_share_of_large: float = 0.95
    # Share of the remaining time for annealing: before the exact model, and after the windows.
    annealing_share_first: float = 0.5
    annealing_share: float = 0.7
    # The same shares, and that of windows, where ranks hold several stages: there long rounds of
    # annealing find most.
    annealing_share_first_of_several: float = 0.2
    annealing_share_of_several: float = 0.9
    window_share_beside_annealing: float = 0.15


SEARCH = SearchTuning()
