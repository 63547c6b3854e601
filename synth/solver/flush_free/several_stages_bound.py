"""Lower bounds of the time per micro-batch on a rank that holds several stages, by what they hold.

From the start of the F of a stage to the end of its B a micro-batch also holds what the F's of the
rank's earlier stages have saved, because these ran before and their B's run later. Let S be the sum
of these bytes, and L the least time between the two. At most n = ⌊H / S⌋ micro-batches are there at
any time, where H is the headroom. Over a long time t with M micro-batches that is Little's law,
M L ≤ n t, so

    T = t / M ≥ L / n

With 2BW every stage always holds a second version, or the bytes that one W frees
(`in_flight_bounds`), so H is less by the smaller of the two for each stage of the rank.
"""

from collections.abc import Iterator

from synth.op_kinds import OpKind
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.instance.instance import B, F, Instance, W


def several_stages_us(flush_free: FlushFreeProblem, instance: Instance) -> Iterator[float]:
    """Yield the bound for each stage of every rank that holds several.

    Args:
        instance: of its problem, relaxed for fusion.
    """
    saved = _bytes_between(instance, F, B)
    waiting = _bytes_between(instance, B, W)
    for rank, held in enumerate(instance.held):
        headroom = instance.headroom_bytes[rank]
        if headroom is None or len(held) == 1:
            continue
        if flush_free.consistency == Consistency.TWO_VERSIONS:
            headroom -= sum(min(_version(flush_free, instance, i), waiting[i]) for i in held)
        total = 0
        for index in held:
            total += saved[index]
            if total:
                # One may be there: where that does not fit, nothing does.
                most = max(1, headroom // total)
                yield _latency_us(instance, index, saved[index]) / most


def _version(flush_free: FlushFreeProblem, instance: Instance, index: int) -> int:
    return flush_free.problem.costs.stages[instance[index].stage].parameter_bytes


def _bytes_between(instance: Instance, made: OpKind, freed: OpKind) -> list[int]:
    """By copy, the bytes that one of its ops makes and another one frees."""
    total = [0] * len(instance)
    for one in instance.lifetimes:
        if one.made[0] == one.freed[0] and (one.made[1], one.freed[1]) == (made, freed):
            total[one.made[0]] += one.num_bytes
    return total


def _latency_us(instance: Instance, index: int, saved: int) -> int:
    """The least time for which a micro-batch holds what F of a copy saves."""
    times = instance[index].duration_us
    latency_us = instance.round_trip_us[index] + times[B]
    # While F runs, its peak counts, which is hardly ever less than what it keeps.
    return latency_us + (times[F] if instance[index].peak_above_bytes[F] >= saved else 0)
