"""The least buffering under which an order of ops runs.

Other runtimes receive into buffers of their own, so that no rank waits until another one posts a
receive. An order made for them may need more than the default `Buffering`.
"""

from dataclasses import replace

from synth.costs.costs import uniform_costs
from synth.schedule.model import Buffering, Schedule
from synth.schedule.simulate import DeadlockError, simulate
from synth.schedule.verify import lower_checked


def with_least_buffering(schedule: Schedule) -> Schedule:
    """Return a schedule with receives posted as few ops ahead as it needs, by default one.

    A larger `receive_ahead` only removes waits, so the least one is found by bisection. Whether a
    schedule runs does not depend on the costs. One that no buffering lets run is returned as it is.

    Raises:
        ScheduleError: an op is missing, repeated, misplaced or out of order.
    """
    most = max(map(len, schedule.programs))
    if _runs(schedule) or not _runs(_ahead(schedule, most)):
        return schedule
    too_few = schedule.buffering.receive_ahead
    while most - too_few > 1:
        middle = (too_few + most) // 2
        if _runs(_ahead(schedule, middle)):
            most = middle
        else:
            too_few = middle
    return _ahead(schedule, most)


def _ahead(schedule: Schedule, receive_ahead: int) -> Schedule:
    return replace(schedule, buffering=Buffering(receive_ahead, schedule.buffering.send_behind))


def _runs(schedule: Schedule) -> bool:
    """Return True if no ops and transfers of a schedule wait for each other in a cycle."""
    costs = uniform_costs(
        schedule.placement.num_stages, forward_us=1, backward_input_us=1, backward_weight_us=1
    )
    try:
        simulate(lower_checked(schedule, costs))
    except DeadlockError:
        return False
    return True
