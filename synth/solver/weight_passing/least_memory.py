"""The schedule with weight passing that needs the least memory of all that are known.

It runs the micro-batches of a rank one after another, with the weights of one stage at a time and
no transfer in advance. Under a tight memory limit a search may find no other schedule.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from synth.schedule.model import Buffering, Schedule
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.tuning import WEIGHT_PASSING
from synth.solver.weight_passing.bounds import least_cap_bytes
from synth.solver.weight_passing.first_orders import orders_of_one_by_one
from synth.solver.weight_passing.problem import WeightMovement, WeightPassingProblem
from synth.solver.weight_passing.programs import make_schedule
from synth.solver.weight_passing.unshard_placement import OpNeeds
from synth.solver.weight_passing.visit_options import VisitOptions

# Every search of a curve, or of a bisection, asks for the same few problems. Costs have no hash, so
# problems are compared.
_KNOWN: deque[tuple[WeightPassingProblem, EvaluatedSchedule | None]] = deque(
    maxlen=WEIGHT_PASSING.remembered_least_memories
)


def least_memory(passing: WeightPassingProblem) -> EvaluatedSchedule | None:
    """Return the schedule with the lowest peak of those tried.

    The trials end with the first one whose peak equals the closed form. Of equal peaks the faster
    schedule is returned.

    Args:
        passing: the problem; its memory limits do not matter.

    Returns:
        The verified schedule, or None if none of them can run.
    """
    problem = replace(passing.problem, caps_bytes=None)
    free = WeightPassingProblem(problem, passing.movement)
    for other, known in list(_KNOWN):
        if other == free:
            return known
    found = _searched(free)
    _KNOWN.append((free, found))
    return found


def _searched(free: WeightPassingProblem) -> EvaluatedSchedule | None:
    never = least_cap_bytes(free)
    best: EvaluatedSchedule | None = None
    for bufferings in _bufferings(free):
        for name, schedule in _frugal(free, bufferings):
            found = evaluate(free.problem, schedule, name)
            if found is not None and (best is None or _rank(found) < _rank(best)):
                best = found
                if max(found.peak_bytes) <= never:
                    return best
        if best is not None:
            break
    return best


def _rank(found: EvaluatedSchedule) -> tuple[int, int]:
    return max(found.peak_bytes), found.value_us


def limits_bytes(passing: WeightPassingProblem) -> tuple[int, int | None]:
    """Return bounds on the least memory limit, one limit for all ranks.

    Returns:
        A lower bound in bytes, in closed form, and an upper bound, which a known schedule keeps;
        None if no schedule is known.
    """
    known = least_memory(passing)
    return least_cap_bytes(passing), None if known is None else max(known.peak_bytes)


def _bufferings(passing: WeightPassingProblem) -> Iterator[tuple[Buffering, ...]]:
    """Yield groups of bufferings by rising memory; each is used if earlier ones deadlock."""
    if passing.movement != WeightMovement.RING:
        yield (Buffering(0, 0),)
        return
    yield tuple(Buffering(*pair) for pair in WEIGHT_PASSING.frugal_bufferings)
    for pair in WEIGHT_PASSING.roomier_bufferings:
        yield (Buffering(*pair),)


def _frugal(
    passing: WeightPassingProblem, bufferings: tuple[Buffering, ...]
) -> Iterator[tuple[str, Schedule]]:
    """Yield schedules with few buffers, by name."""
    table, is_ring = OpNeeds(passing), passing.movement == WeightMovement.RING
    every = {1} if is_ring else {1, passing.rounds}
    visits = (
        product(WEIGHT_PASSING.frugal_aheads, WEIGHT_PASSING.frugal_most_open)
        if is_ring
        else [(0, 1)]
    )
    choices_of_visits = [
        VisitOptions(ahead, most_open, scatter_every, False, buffering, sharded)
        for buffering, (ahead, most_open) in product(bufferings, visits)
        for scatter_every in sorted(every)
        for sharded in passing.levels
    ]
    for order, name in orders_of_one_by_one(passing).items():
        for visit_options in choices_of_visits:
            yield name, make_schedule(table, (order,), visit_options, None)
