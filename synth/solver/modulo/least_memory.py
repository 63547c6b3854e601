"""Modulo schedules of one micro-batch per interval under the least memory limit.

Times are coarse ticks, because only the order counts, which is timed exactly afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import gcd
from typing import NamedTuple

from synth.solver.cpsat.run import solve_briefly
from synth.solver.instance.instance import SPLIT, STEP, Instance
from synth.solver.modulo.cyclic_ops import CyclicSchedule, with_times
from synth.solver.modulo.recurrent_job_shop import RecurrentJobShop, latest_start
from synth.solver.tuning import STEADY_STATE


class LeastMemory(NamedTuple):
    """A limit for all ranks under which a schedule without a bubble was found, and its bound.

    No schedule of one micro-batch in these ticks needs less than `not_below_bytes`. `is_exact` is
    True if the ticks are exact times, not rounded ones.
    """

    cap_bytes: int
    not_below_bytes: int
    is_exact: bool
    ticks: int


def busiest_us(instance: Instance) -> int:
    """Return the most work of a rank for one micro-batch: the shortest interval."""
    return max(sum(instance[copy].work_us for copy in held) for held in instance.held)


def find(
    instance: Instance,
    interval_share: float,
    seconds: float,
    *,
    ticks: int = STEADY_STATE.ticks,
    seed: int = 0,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> CyclicSchedule | None:
    """Find a schedule that keeps the caps, with the shortest way through the pipeline.

    Args:
        interval_share: the interval, as a multiple of the largest work of a rank: 1 has no bubble.
        seconds: CP-SAT's deterministic seconds.
        ticks: of the largest work of a rank for one micro-batch.
    """
    # The nearest tick: rounding up at each step fills a tight memory.
    shop = _job_shop(instance, ticks, interval_share, round)
    for held, headroom in zip(instance.held, instance.headroom_bytes, strict=True):
        if headroom is not None:
            shop.add_memory(held, headroom)
    span = shop.cp.new_int_var(0, shop.latest + shop.interval, "span")
    for node in shop.ops.start:
        shop.cp.add(span >= shop.ops.end(node))
    shop.cp.minimize(span)
    found = solve_briefly(shop.cp, seconds, seed, workers, should_stop)
    return None if found is None else shop.ops.read(found)


def least_memory(
    instance: Instance,
    static_bytes: Sequence[int],
    seconds: float,
    seed: int = 0,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> LeastMemory | None:
    """Minimise the limit with which some schedule keeps the busiest rank always busy.

    Args:
        instance: without caps.
        seconds: CP-SAT's deterministic seconds.
        should_stop: polled while solving; then the least limit so far is returned.
    """
    ticks, is_exact = _exact_ticks(instance)
    # Transfers are rounded up: without lags it takes much longer.
    shop = _job_shop(instance, ticks, 1.0, math.ceil)
    cap = shop.cp.new_int_var(0, _most_bytes(shop, static_bytes), "cap")
    for held, static in zip(instance.held, static_bytes, strict=True):
        shop.add_memory(held, cap - static)
        for copy in held:
            shop.cp.add(cap >= static + instance[copy].peak_above_bytes[STEP])
    shop.cp.minimize(cap)
    found = solve_briefly(shop.cp, seconds, seed, workers, should_stop)
    if found is None:
        return None
    return LeastMemory(found.value(cap), -int(-found.bound // 1), is_exact, ticks)


def _job_shop(
    instance: Instance, ticks: int, interval_share: float, lag: Callable[[float], int]
) -> RecurrentJobShop:
    """Build the model in ticks."""
    tick_us = max(1.0, busiest_us(instance) / ticks)
    coarse = with_times(
        instance, lambda us: max(1, round(us / tick_us)) if us else 0, lambda us: lag(us / tick_us)
    )
    interval = max(1, round(busiest_us(coarse) * interval_share))
    return RecurrentJobShop(coarse, interval, latest_start(coarse, interval))


def _exact_ticks(instance: Instance) -> tuple[int, bool]:
    """Return the ticks of the largest work, and True if all times are whole multiples of a tick."""
    times = [copy.duration_us[kind] for copy in instance.copies for kind in SPLIT]
    times += [lag for copy in instance.copies for lag in (copy.down_us, copy.up_us)]
    unit, work_us = gcd(*times), busiest_us(instance)
    if unit and work_us // unit <= STEADY_STATE.most_exact_ticks:
        return work_us // unit, True
    return STEADY_STATE.ticks, False


def _most_bytes(shop: RecurrentJobShop, static_bytes: Sequence[int]) -> int:
    """Return more than any schedule needs."""
    copies = shop.instance.copies
    each = sum(abs(num_bytes) for c in copies for num_bytes in c.delta_bytes.values())
    peaks_above = sum(max(copy.peak_above_bytes.values()) for copy in copies)
    return max(static_bytes) + shop.most * each + peaks_above
