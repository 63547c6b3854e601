"""The time per micro-batch while a pipeline that is never flushed is full.

In the steady state every stage runs one micro-batch after the other, and stage s has K_s of them in
flight. Its period is at least the work of a micro-batch on any stage, and at least the round trip
of one through the stages behind s and back, divided by K_s. If r_s ranks hold a stage, and take
micro-batches in turn, its work is divided by r_s, and K_s is that of all of them:

    max( max_s (F_s + B_s + STEP_s / k) / r_s,
         max_s (Σ_{t ≥ s} (F_t + B_t) + 2 (n − 1 − s) c) / K_s )

With equal stages and K_s = n − s that is max(F + B, (n (F + B) + 2 (n − 1) c) / n): on slow links a
pipeline of the classical depth has bubbles even if it is never flushed.
"""

from collections import Counter
from collections.abc import Sequence
from math import lcm

import numpy as np

from synth.costs import Costs, IntArray
from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline


def steady_us(timeline: Timeline) -> float | None:
    """The simulated time per micro-batch, from the backwards of the first stage while it is full.

    It is measured over a whole number of repetitions: a repetition is divided by the micro-batches
    that are in flight, by those after which the order repeats, and by those of an update. In fewer,
    updates would count too often or not at all, unless they take no time.

    Returns:
        None for a schedule that flushes, or one that is never full for a whole repetition.
    """
    lowered = timeline.lowered
    rule, m = lowered.schedule.versions, lowered.schedule.num_micro_batches
    if rule is None:
        return None
    in_flight = int(_in_flight(lowered)[0])
    repetition = _repetition(lowered, in_flight)
    last = m - in_flight
    count = (last - in_flight) // repetition * repetition
    if count < 1:
        return None
    node: list[int] = _backwards_of_first_stage(lowered).tolist()
    return (timeline.end_us[node[last]] - timeline.end_us[node[last - count]]) / count


def least_micro_batches(lowered: Lowered) -> int:
    """The fewest micro-batches with which a schedule of such an order has a steady time.

    Raises:
        ValueError: the schedule flushes.
    """
    rule = lowered.schedule.versions
    if rule is None:
        raise ValueError(f"{lowered.schedule.name} flushes")
    in_flight = int(_in_flight(lowered)[0])
    least = 2 * in_flight + _repetition(lowered, in_flight)
    return -(-least // rule.every) * rule.every


def _repetition(lowered: Lowered, in_flight: int) -> int:
    """The micro-batches after which order and updates repeat."""
    takes_time = any(stage.duration_us[OpKind.STEP] for stage in lowered.costs.stages)
    in_orders = [_repeats_after(program, lowered) for program in lowered.ops]
    updates = lowered.schedule.update_sizes if takes_time else ()
    return lcm(in_flight, *updates, *in_orders)


def _repeats_after(program: Sequence[Op], lowered: Lowered) -> int:
    """The fewest micro-batches after which a rank's ops repeat, while all of them are there.

    Of a stage that several ranks hold, each has every so many micro-batches only.
    """
    m = lowered.schedule.num_micro_batches
    ops = [(op.kind, op.stage) for op in program if op.kind != OpKind.STEP]
    first = {op: place for place, op in reversed([*enumerate(ops)])}
    last = {op: place for place, op in enumerate(ops)}
    full = ops[max(first.values()) : min(last.values()) + 1]
    of_one, counts = len(first), {*Counter(ops).values()}
    if len(counts) > 1:
        return m  # B and W are one op for some micro-batches only
    periods = range(1, len(full) // of_one + 1)
    found = (n for n in periods if full[n * of_one :] == full[: -n * of_one])
    return next((n * (m // min(counts)) for n in found), m)


def least_steady_us(lowered: Lowered) -> float | None:
    """The bound of the time per micro-batch above; None for a schedule that flushes."""
    rule, costs = lowered.schedule.versions, lowered.costs
    if rule is None:
        return None
    kinds = (OpKind.F, OpKind.BW) if _is_fused(lowered) else (OpKind.F, OpKind.B, OpKind.W)
    rank_us: dict[int, float] = {}
    for stage, ranks in enumerate(lowered.schedule.placement.holders):
        times = costs.stages[stage].duration_us
        work_us = sum(times[kind] for kind in kinds) + times[OpKind.STEP] / rule.every
        for rank in ranks:
            rank_us[rank] = rank_us.get(rank, 0.0) + work_us / len(ranks)
    return max(*rank_us.values(), *_round_trips_us(lowered))


def _round_trips_us(lowered: Lowered) -> list[float]:
    """By stage the round trip through the stages behind it, over the micro-batches in flight."""
    costs, copies = lowered.costs, lowered.schedule.placement.ranks
    in_flight, trip_us, found = _in_flight(lowered), 0, []
    for stage in reversed(range(costs.num_stages)):
        times = costs.stages[stage].duration_us
        trip_us += times[OpKind.F] + times[OpKind.BW if _is_fused(lowered) else OpKind.B]
        if stage < costs.num_stages - 1:
            trip_us += min(
                _there_and_back_us(costs, stage, *row[stage : stage + 2]) for row in copies
            )
        found.append(trip_us / int(in_flight[stage]))
    return found


def _there_and_back_us(costs: Costs, stage: int, rank: int, behind: int) -> int:
    """The time of an activation to the stage behind, and of its gradient."""
    if rank == behind:
        return 0
    return costs.boundary_us(stage, rank, behind) + costs.boundary_us(stage, behind, rank)


def _is_fused(lowered: Lowered) -> bool:
    return bool(lowered.arrays.of_kinds(OpKind.BW).any())


def _in_flight(lowered: Lowered) -> IntArray:
    """By stage the most micro-batches whose F is over and whose B or BW is not, over its ranks."""
    arrays = lowered.arrays
    change = arrays.of_kinds(OpKind.F).astype(np.int64) - arrays.of_kinds(OpKind.B, OpKind.BW)
    found = [
        sum(
            change[(arrays.stage == stage) & (arrays.rank == rank)].cumsum().max(initial=0)
            for rank in ranks
        )
        for stage, ranks in enumerate(lowered.schedule.placement.holders)
    ]
    return np.array(found)


def _backwards_of_first_stage(lowered: Lowered) -> IntArray:
    """The nodes of its B's or BW's, by micro-batch."""
    arrays = lowered.arrays
    node = (arrays.of_kinds(OpKind.B, OpKind.BW) & (arrays.stage == 0)).nonzero()[0]
    ordered: IntArray = node[arrays.microbatch[node].argsort()]
    return ordered
