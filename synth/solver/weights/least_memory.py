"""The least memory in which a schedule whose weights travel is known.

The micro-batches of a rank follow one another, with the weights of one stage at a time and no
transfer in advance. Under a tight memory limit a search may find nothing else.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from synth.schedule.model import Buffering, Schedule
from synth.solver.evaluate.evaluate import EvaluatedSchedule, evaluate
from synth.solver.tuning import TRAVEL
from synth.solver.weights.first_orders import orders_of_one_by_one
from synth.solver.weights.programs import make_schedule
from synth.solver.weights.travel import TravelProblem, WeightMovement
from synth.solver.weights.travel_bounds import least_cap_bytes
from synth.solver.weights.visit_placement import OpNeeds, Placing


def least_memory(travel: TravelProblem) -> EvaluatedSchedule | None:
    """Return the schedule with the lowest peak of those tried; the faster one of equals.

    Args:
        travel: the problem; its memory limits do not matter.

    Returns:
        The verified schedule, or None if none of them can run.
    """
    problem = replace(travel.problem, caps_bytes=None)
    free = TravelProblem(problem, travel.movement)
    found = (evaluate(problem, schedule, name) for name, schedule in _frugal(free))
    return min(
        (one for one in found if one is not None),
        key=lambda one: (max(one.peak_bytes), one.value_us),
        default=None,
    )


def limits_bytes(travel: TravelProblem) -> tuple[int, int | None]:
    """Return the memory limits of all ranks that bound the least one.

    Returns:
        A limit in bytes that every schedule exceeds below, in closed form, and one that a known
        schedule keeps; None if no schedule is known.
    """
    known = least_memory(travel)
    return least_cap_bytes(travel), None if known is None else max(known.peak_bytes)


def _frugal(travel: TravelProblem) -> Iterator[tuple[str, Schedule]]:
    """Yield schedules with few buffers, by name. On a ring too few of them are a deadlock."""
    table, is_ring = OpNeeds(travel), travel.movement == WeightMovement.RING
    every = {1} if is_ring else {1, travel.rounds}
    buffers = (
        product(TRAVEL.frugal_bufferings, TRAVEL.frugal_aheads, TRAVEL.frugal_most_open)
        if is_ring
        else [((0, 0), 0, 1)]
    )
    placings = [
        Placing(ahead, most_open, scatter_every, False, Buffering(*pair), sharded)
        for pair, ahead, most_open in buffers
        for scatter_every in sorted(every)
        for sharded in travel.levels
    ]
    for order, name in orders_of_one_by_one(travel).items():
        for placing in placings:
            yield name, make_schedule(table, (order,), placing, None)
