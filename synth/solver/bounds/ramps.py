"""Closed-form bounds from what fits into a rank's memory in its warm-up and its cooldown.

    warm-up   only F's before the first B, as many as memory takes
    cooldown  only B's and W's after the last F, those of the micro-batches that memory holds

The first B comes a round trip after the first F, and the end a round trip and a way up after the
last F. What these ops do not fill of that time the rank idles. The most that they fill is a
fractional knapsack (Dantzig 1957) of durations and bytes; both idle times add up if memory does not
take all F's, because then the last F comes after the first B.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from synth.solver.instance.instance import B, F, Instance, W


class _Item(NamedTuple):
    """Ops of one kind that memory holds: the work and the bytes of each, and their number."""

    work_us: int
    num_bytes: int
    num_ops: int


def ramp_bounds(instance: Instance, rank: int, first_b_us: int, *, is_period: bool) -> list[int]:
    """Return bounds of the end of the rank, or of all ranks that its last gradient reaches.

    Args:
        first_b_us: no B of the rank starts sooner.
        is_period: only the rank itself counts.
    """
    held, room = instance.held[rank], instance.headroom_bytes[rank]
    if room is None:
        return []
    copies = [instance[copy] for copy in held]
    first_us = min(instance.head_us[copy] for copy in held)
    work_us = sum(copy.num_micro_batches * (copy.work_us + copy.again_us) for copy in copies)
    forwards = [
        _Item(one.duration_us[F] + one.again_us, one.delta_bytes[F], one.num_micro_batches)
        for one in copies
    ]
    has_later_f = sum(item.num_bytes * item.num_ops for item in forwards) > room
    if has_later_f:
        first_us = max(first_us, first_b_us - _most_work_us(forwards, room))
    # Bytes of all ops together, less those of the B's and W's that are left.
    left, freed = list[_Item](), room
    for one in copies:
        count, deltas = one.num_micro_batches, one.delta_bytes
        freed -= count * (deltas[F] + deltas[B] + deltas[W])
        backward_us = one.duration_us[B] + one.duration_us[W] + one.again_us
        left.append(_Item(backward_us, -deltas[B] - deltas[W], count))
        left.append(_Item(one.duration_us[W], -deltas[W], count))
    last_us = after_last_f_us(instance, rank, is_period=is_period)
    before_us = max(0, work_us - _most_work_us(left, freed))
    return [first_us + work_us + instance.step_us(rank), first_us + before_us + last_us]


def after_last_f_us(instance: Instance, rank: int, *, is_period: bool) -> int:
    """Return the least time from the end of a rank's last F to the end; arguments as above."""
    return min(
        instance.round_trip_us[copy] + max(_ways_up(instance, copy, is_period=is_period))
        for copy in instance.held[rank]
    )


def _ways_up(instance: Instance, copy: int, *, is_period: bool) -> Iterator[int]:
    """Yield the times from the start of a B to the ends of the ranks that its gradient reaches."""
    rank, backward_us = instance[copy].rank, instance[copy].duration_us[B]
    yield backward_us + instance[copy].duration_us[W] + instance.step_us(rank)
    for above, way_us in instance.ways_up_us(copy):
        one = instance[above]
        if one.rank == rank or not is_period:
            own_us = one.duration_us[B] + one.duration_us[W] + instance.step_us(one.rank)
            yield backward_us + way_us + own_us


def _most_work_us(items: Iterable[_Item], room: int) -> int:
    """Return the most work of ops whose bytes fit; the last of them may fit in part."""
    most_us, heavy = 0.0, list[_Item]()
    for item in items:
        if item.num_bytes > 0:
            heavy.append(item)
        else:
            most_us += item.work_us * item.num_ops
            room -= item.num_bytes * item.num_ops
    for item in sorted(heavy, key=lambda item: item.work_us / item.num_bytes, reverse=True):
        count = min(item.num_ops, max(0, room) / item.num_bytes)
        most_us += count * item.work_us
        room -= math.floor(count * item.num_bytes)
    return math.ceil(most_us)
