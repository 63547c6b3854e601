"""The time per micro-batch while a pipeline that is never flushed is full.

In the steady state every stage runs one micro-batch after the other, and stage s has K_s of them in
flight. The time per micro-batch is at least the work of a micro-batch on any stage, and at least
the round trip of one through the stages after s and back, divided by K_s. If r_s ranks hold a
stage, and take micro-batches in turn, its work is divided by r_s, and K_s is that of all of them:

    max( max_s (F_s + B_s + STEP_s / k) / r_s,
         max_s (Σ_{t ≥ s} (F_t + B_t) + 2 (n − 1 − s) c) / K_s )

With equal stages and K_s = n − s that is max(F + B, (n (F + B) + 2 (n − 1) c) / n): on slow links a
pipeline of the classical depth has bubbles even if it is never flushed. Where B and W are apart, B
is in the round trip, and B and W are work. A link serves one transfer at a time, so its transfers
of a micro-batch are a bound, too.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import lcm

import numpy as np

from synth.costs.costs import Costs, IntArray
from synth.op_kinds import OpKind
from synth.schedule.arrays import Flags
from synth.schedule.long_run import repetition_us
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline

# The ops of a micro-batch on a stage: its work, and those that the stage before waits for.
_WORK = ((OpKind.F, OpKind.BW), (OpKind.F, OpKind.B, OpKind.W))
_ON_THE_WAY = ((OpKind.F, OpKind.BW), (OpKind.F, OpKind.B))


def steady_us(timeline: Timeline) -> float | None:
    """The simulated time per micro-batch, from the backwards of the first stage while it is full.

    It is that of the order if it continued forever (`long_run`), so no transient of a plan with few
    micro-batches. If stages have copies, or the plan has no repetition of the order and the updates
    in full, it is measured over a whole number of repetitions: a repetition is divided by the
    micro-batches that are in flight, by those after which the order repeats, and by those of an
    update. In fewer, updates would count too often or not at all, unless they take no time. While
    buffers still fill up, a schedule can run ahead of its long-run time; a measured time below
    `least_steady_us` is such a transient, and the bound is returned instead of it.

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
    exact_us = _long_run_us(lowered)
    if exact_us is not None:
        return exact_us
    node: list[int] = _backwards_of_first_stage(lowered).tolist()
    measured_us = (timeline.end_us[node[last]] - timeline.end_us[node[last - count]]) / count
    return max(measured_us, least_steady_us(lowered) or 0.0)


def _long_run_us(lowered: Lowered) -> float | None:
    """The time per micro-batch of the order if it repeats forever; None: it is not known."""
    if len(lowered.schedule.placement.ranks) > 1:
        return None
    in_orders = [_repeats_after(program, lowered) for program in lowered.ops]
    size = lcm(*in_orders, *lowered.schedule.update_sizes)
    full = np.concatenate([_is_full(program) for program in lowered.ops])
    found = repetition_us(lowered, size, full)
    return None if found is None else float(found / size)


def _is_full(program: Sequence[Op]) -> Flags:
    """A mask of a rank's ops after the first ones of each kind, up to the last ones of each."""
    ops = [(op.kind, op.stage) for op in program]
    passes = {op for op in ops if op[0] != OpKind.STEP}
    first = {op: place for place, op in reversed([*enumerate(ops)])}
    last = {op: place for place, op in enumerate(ops)}
    found = np.zeros(len(ops), dtype=np.bool_)
    found[max(first[op] for op in passes) + 1 : min(last[op] for op in passes) + 1] = True
    return found


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

    The repeated part stands there twice in full; if there is none, it is all micro-batches.
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
    # Twice at least, as a few last ops may be like the first ones by chance.
    repetitions = range(1, len(full) // (2 * of_one) + 1)
    found = (n for n in repetitions if full[n * of_one :] == full[: -n * of_one])
    return next((n * (m // min(counts)) for n in found), m)


def least_steady_us(lowered: Lowered) -> float | None:
    """The bound of the time per micro-batch above; None for a schedule that flushes."""
    rule, costs = lowered.schedule.versions, lowered.costs
    if rule is None:
        return None
    rank_us: dict[int, float] = {}
    for stage, ranks in enumerate(lowered.schedule.placement.holders):
        step_us = costs.stages[stage].duration_us[OpKind.STEP] / rule.every
        work_us = _least_us(lowered, stage, _WORK) + step_us
        for rank in ranks:
            rank_us[rank] = rank_us.get(rank, 0.0) + work_us / len(ranks)
    return max(*rank_us.values(), *_round_trips_us(lowered), *_links_us(lowered))


def _least_us(lowered: Lowered, stage: int, ways: Sequence[Sequence[OpKind]]) -> int:
    """The least time of the ways in which a stage runs a micro-batch.

    A stage may fuse B and W for some micro-batches, and run them apart for others.
    """
    times, arrays = lowered.costs.stages[stage].duration_us, lowered.arrays
    found = [
        sum(times[kind] for kind in kinds)
        for kinds in ways
        if (arrays.of_kinds(kinds[1]) & (arrays.stage == stage)).any()
    ]
    return min(found)


def _round_trips_us(lowered: Lowered) -> list[float]:
    """By stage the round trip through the stages after it, over the micro-batches in flight."""
    costs, copies = lowered.costs, lowered.schedule.placement.ranks
    in_flight, trip_us, found = _in_flight(lowered), 0, []
    for stage in reversed(range(costs.num_stages)):
        trip_us += _least_us(lowered, stage, _ON_THE_WAY)
        if stage < costs.num_stages - 1:
            trip_us += min(
                _there_and_back_us(costs, stage, *row[stage : stage + 2]) for row in copies
            )
        found.append(trip_us / int(in_flight[stage]))
    return found


def _links_us(lowered: Lowered) -> list[float]:
    """By directed link its transfers of a micro-batch; copies of stages take turns."""
    costs, copies = lowered.costs, lowered.schedule.placement.ranks
    total_us: dict[tuple[int, int], float] = {}
    for row in copies:
        for stage, (rank, following) in enumerate(pairwise(row)):
            if rank == following:
                continue
            there, back = (rank, following), (following, rank)
            for link, us in (
                (there, costs.boundary_us(stage, *there)),
                (back, costs.return_us(stage, *back)),
            ):
                total_us[link] = total_us.get(link, 0.0) + us / len(copies)
    return [*total_us.values()]


def _there_and_back_us(costs: Costs, stage: int, rank: int, following: int) -> int:
    """The time of an activation to the following stage, and of its gradient."""
    if rank == following:
        return 0
    return costs.boundary_us(stage, rank, following) + costs.return_us(stage, following, rank)


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
