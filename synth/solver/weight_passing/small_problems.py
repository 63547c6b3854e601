"""Exact searches with weight passing, for problems that are small enough."""

from collections.abc import Callable

from synth.solver.options import SolveOptions
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.weight_passing.exact_gather_model import num_slots
from synth.solver.weight_passing.exact_proof import ExactProof
from synth.solver.weight_passing.gather_proof import prove_gathers
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.ring_enumeration import enumerate_ring, is_enumerable


def is_small(passing: WeightPassingProblem) -> bool:
    """True if an exact search is likely to end."""
    if passing.movement == WeightMovement.RING:
        return is_enumerable(passing)
    return num_slots(passing) <= WEIGHT_PASSING.most_exact_slots


def prove_exactly(
    passing: WeightPassingProblem,
    best_us: int | None,
    options: SolveOptions,
    limit_s: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> ExactProof:
    """Look for a schedule below a makespan, or prove that there is none.

    With all-gathers CP-SAT solves a model; on a ring all schedules are enumerated. The arguments
    are those of `prove_gathers` and `enumerate_ring`.
    """
    is_ring = passing.movement == WeightMovement.RING
    prove = enumerate_ring if is_ring else prove_gathers
    return prove(passing, best_us, options, limit_s, should_stop)
