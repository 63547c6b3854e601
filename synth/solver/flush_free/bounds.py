"""Lower bounds on the time per micro-batch without a flush, for every order.

They are the resource bound of modulo scheduling (Rau 1994), and Little's law with versions: if at
most K micro-batches are in flight on a stage, the time per micro-batch is at least the latency over
K. The latter is evaluated in closed form (`in_flight_bounds`) or over all states of a stage
(`stage_state_bound`). On a rank with several stages it holds for those that a micro-batch holds
together (`several_stages_bound`).

The bounds hold for orders in which every stage takes its micro-batches in their order.
"""

from collections.abc import Iterator

from synth.solver.flush_free.flush_free_problem import FlushFreeProblem
from synth.solver.flush_free.in_flight_bounds import in_flight_us
from synth.solver.flush_free.several_stages_bound import several_stages_us
from synth.solver.flush_free.stage_state_bound import stage_state_bound_us
from synth.solver.instance.instance import Instance
from synth.solver.instance.memory_models import relaxed_for_fusion


def any_order_us(flush_free: FlushFreeProblem) -> float:
    """The largest bound, in microseconds per micro-batch."""
    instance = relaxed_for_fusion(flush_free.problem)
    largest_us = closed_form_us(flush_free)
    for index in _alone(instance):
        largest_us = stage_state_bound_us(flush_free, instance, index, largest_us)
    return largest_us


def closed_form_us(flush_free: FlushFreeProblem) -> float:
    """The largest bound in closed form, in microseconds per micro-batch."""
    instance = relaxed_for_fusion(flush_free.problem)
    return max(
        *_works_us(flush_free, instance),
        *_links_us(instance),
        *_lifetimes_us(instance),
        *several_stages_us(flush_free, instance),
        *(in_flight_us(flush_free, instance, index) for index in _alone(instance)),
        0.0,
    )


def makespan_us(flush_free: FlushFreeProblem) -> int:
    """A bound of the whole schedule: the largest work of a rank, updates included."""
    works_us = _works_us(flush_free, relaxed_for_fusion(flush_free.problem))
    return round(max(works_us) * flush_free.problem.num_micro_batches)


def _works_us(flush_free: FlushFreeProblem, instance: Instance) -> Iterator[float]:
    """By rank its work for one micro-batch."""
    for held in instance.held:
        yield sum(instance[i].work_us + flush_free.step_us(instance[i].stage) for i in held)


def _links_us(instance: Instance) -> Iterator[float]:
    """By directed link its transfers of one micro-batch, which it serves one at a time."""
    total_us: dict[tuple[int, int], int] = {}
    for copy in instance.copies:
        if copy.below is not None:
            ends = copy.rank, instance[copy.below].rank
            for link, us in ((ends, copy.down_us), (ends[::-1], copy.up_us)):
                total_us[link] = total_us.get(link, 0) + us
    yield from total_us.values()


def _lifetimes_us(instance: Instance) -> Iterator[float]:
    """By rank the bytes of a micro-batch, each multiplied by its lifetime, over the headroom.

    It is Little's law for bytes, of all stages of the rank together.
    """
    for rank, headroom in enumerate(instance.headroom_bytes):
        if headroom:
            lifetimes = [one for one in instance.lifetimes if instance[one.made[0]].rank == rank]
            needed = (one.num_bytes * instance.shortest_lifetime_us(one) for one in lifetimes)
            yield sum(needed) / headroom


def _alone(instance: Instance) -> list[int]:
    """The copies that are alone on their ranks."""
    return [index for index in range(len(instance)) if instance.is_alone(index)]
