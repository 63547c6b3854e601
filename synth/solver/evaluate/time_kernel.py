"""Exact times of programs, compiled by Numba: those of `synth.schedule.simulate`.

An op waits for the one before it on its rank, for its inputs, and for the sends that are awaited
right before it; a B also for its activation, if that was moved. A transfer waits for its maker, for
the op after which its receive is posted, and for the transfer before it on its link. All functions
change `OrderArrays` in place.
"""

import math
from typing import NamedTuple

import numpy as np

from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.move_arrays import BACK, OUT
from synth.solver.evaluate.move_kernel import (
    awaited_moves_us,
    begin_moves,
    keep_ends,
    num_moves_before,
)
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import (
    DURATION,
    GROUP,
    IS_FUSED,
    LAG,
    LEAD,
    LENGTH,
    NUM_STEPS,
    PLACE,
    POST,
    PREVIOUS,
    RANK,
    READER,
    REDUCTION,
    SOURCE,
    STAGE,
    Ints,
    OrderArrays,
)


class _Times(NamedTuple):
    """The arrays of `OrderArrays` on which the end of a transfer depends."""

    programs: Ints
    ops: Ints
    copies: Ints
    ends: Ints
    arrivals: Ints
    ahead: int
    num_micro_batches: int


@compiled
def filled(size: int, value: int) -> Ints:
    """Return an array of one value. A loop compiles in a fraction of the time of `np.full`."""
    found = np.empty(size, np.int64)
    for at in range(size):
        found[at] = value
    return found


@compiled
def _copy(source: Ints, target: Ints) -> None:
    """Copy an array of one dimension."""
    for at in range(len(source)):
        target[at] = source[at]


@compiled
def _transfer(t: _Times, sender: int, chain: Ints) -> int:
    """Return the end of an op's transfer; if unknown, −2 less the op to wait for.

    Args:
        chain: space for the transfers before it that have no time yet.
    """
    programs, ops, copies, ends, arrivals = t.programs, t.ops, t.copies, t.ends, t.arrivals
    length = 0
    while sender != NONE and arrivals[sender] < 0:
        chain[length] = sender
        length += 1
        sender = ops[sender, PREVIOUS]
    free_us = 0 if sender == NONE else arrivals[sender]
    for at in range(length - 1, -1, -1):
        op = chain[at]
        ready_us = ends[op]
        if ready_us < 0:
            return int(-2 - op)
        reader, post = ops[op, READER], ops[op, POST]
        if post == NONE:
            post = ops[reader, PLACE] - t.ahead
        if post > 0:
            rank = copies[reader // t.num_micro_batches // 3, RANK]
            before = programs[rank, post - 1]
            if ends[before] < 0:
                return int(-2 - before)
            ready_us = max(ready_us, ends[before])
        free_us = max(ready_us, free_us) + ops[op, LAG]
        arrivals[op] = free_us
    return int(free_us)


def time_orders(a: OrderArrays) -> int:
    """Time all ops and transfers, and return the value; `NONE` if they wait for each other."""
    return run(a, np.zeros(a.num_ranks, np.int64), math.inf)


@compiled
def unaffected(a: OrderArrays, rank: int, start: int) -> Ints:
    """Return by rank how many ops keep their times if a rank's order changes from a place on.

    Those are the ops that start before the first one that the change can affect.
    """
    programs, ops, ranks, ends = a.programs, a.ops, a.ranks, a.ends
    places = filled(a.num_ranks, 0)
    first = start - a.ahead - 1
    if first < 0:
        return places
    op = programs[rank, first]
    changed_us = ends[op] - ops[op, DURATION] - a.lead
    for one in range(a.num_ranks):
        low, high = 0, first if one == rank else ranks[one, LENGTH]
        while low < high:
            middle = (low + high) // 2
            op = programs[one, middle]
            if ends[op] - ops[op, DURATION] < changed_us:
                low = middle + 1
            else:
                high = middle
        places[one] = low
    return places


@compiled
def _moved_us(a: OrderArrays, rank: int, place: int, before_us: int) -> int:
    """Return when the moves have ended for which the op at a place waits."""
    awaited_us = awaited_moves_us(a.moves, rank, place, a.behind, before_us)
    op, count = a.programs[rank, place], a.num_micro_batches
    if op < a.num_split and op // count % 3 == 1:
        cell = op // count // 3 * count + op % count
        if a.moves.cells[cell, OUT] != NONE:
            return int(max(awaited_us, a.moves.tried_ends[cell, BACK]))
    return awaited_us


@compiled
def run(a: OrderArrays, places: Ints, limit_us: float) -> int:
    """Run each rank from its place on; return the value, or `NONE` if it is above the limit.

    It is `NONE`, too, if ops wait for each other. A rank runs as far as it can, and again once the
    op that it waits for has run.
    """
    programs, ops, ranks, waiting = a.programs, a.ops, a.ranks, a.waiting
    ends, arrivals, behind, num_ranks = a.tried_ends, a.tried_arrivals, a.behind, a.num_ranks
    t = _Times(programs, ops, a.copies, ends, arrivals, a.ahead, a.num_micro_batches)
    chain = np.empty(len(ops), np.int64)
    # By rank: the work left, the op that it waits for, the next rank that waits for the same one.
    left_us = filled(num_ranks, 0)
    awaited, next_waiting = filled(num_ranks, NONE), filled(num_ranks, NONE)
    _copy(a.ends, ends)
    _copy(a.arrivals, arrivals)
    begin_moves(a.moves, places)
    for rank in range(num_ranks):
        for place in range(places[rank], ranks[rank, LENGTH]):
            op = programs[rank, place]
            left_us[rank] += ops[op, DURATION]
            ends[op] = NONE
            if ops[op, SOURCE] != NONE:
                arrivals[ops[op, SOURCE]] = NONE
    ready, num_ready, is_late = np.empty(num_ranks, np.int64), num_ranks, False
    for rank in range(num_ranks):
        ready[rank] = rank
    while num_ready and not is_late:
        num_ready -= 1
        rank = ready[num_ready]
        place, last = places[rank], ranks[rank, LENGTH] - ranks[rank, NUM_STEPS]
        at, left = 0, left_us[rank]
        begin_us = 0
        if place:
            first, before = programs[rank, 0], programs[rank, place - 1]
            at, begin_us = ends[before], ends[first] - ops[first, DURATION]
        while place < last:
            op = programs[rank, place]
            arrived, sender = 0, ops[op, SOURCE]
            if sender != NONE:
                arrived = arrivals[sender]
                if arrived < 0:
                    arrived = _transfer(t, sender, chain)
                at = max(at, arrived - ops[op, LEAD])
            if arrived >= 0 and place > behind:
                sender = programs[rank, place - behind - 1]
                if ops[sender, READER] != NONE:
                    arrived = arrivals[sender]
                    if arrived < 0:
                        arrived = _transfer(t, sender, chain)
                    at = max(at, arrived)
            if arrived < 0:
                op = -2 - arrived
                awaited[rank], next_waiting[rank], waiting[op] = op, waiting[op], rank
                break
            if place and a.moves.counts[rank]:
                before_us = ends[programs[rank, place - 1]]
                at = max(at, _moved_us(a, rank, place, before_us))
            if place == 0:
                begin_us = at
            # The rank ends no sooner than with the work that is left.
            if a.makespans * (at + left) + a.periods * (at + left - begin_us) > limit_us:
                is_late = True
                break
            left -= ops[op, DURATION]
            at += ops[op, DURATION]
            ends[op] = at
            place += 1
            other = waiting[op]
            while other != NONE:
                awaited[other] = NONE
                ready[num_ready] = other
                num_ready += 1
                other = next_waiting[other]
            waiting[op] = NONE
        places[rank], left_us[rank] = place, left
    for rank in range(num_ranks):
        if awaited[rank] != NONE:
            waiting[awaited[rank]] = NONE
            is_late = True
    if is_late:
        return NONE
    value_us = _value(a, t, chain)
    return value_us if value_us <= limit_us else NONE


@compiled
def value_of_ends(a: OrderArrays) -> int:
    """Time the STEPs behind `ends` and `arrivals`, all of which are known; return the value."""
    t = _Times(a.programs, a.ops, a.copies, a.ends, a.arrivals, a.ahead, a.num_micro_batches)
    return _value(a, t, a.paths.queue)


@compiled
def _value(a: OrderArrays, t: _Times, chain: Ints) -> int:
    """Time the STEPs and return the value."""
    programs, ops, ranks, ends = a.programs, a.ops, a.ranks, t.ends
    _time_steps(a, t, chain)
    makespan_us = period_us = 0
    for rank in range(a.num_ranks):
        first, last = programs[rank, 0], programs[rank, ranks[rank, LENGTH] - 1]
        end_us, begin_us = ends[last], ends[first] - ops[first, DURATION]
        makespan_us = max(makespan_us, end_us)
        period_us = max(period_us, end_us - begin_us)
    return int(a.makespans * makespan_us + a.periods * period_us)


@compiled
def keep(a: OrderArrays) -> None:
    """Keep the times of the programs timed last."""
    _copy(a.tried_ends, a.ends)
    _copy(a.tried_arrivals, a.arrivals)
    keep_ends(a.moves)


@compiled
def _time_steps(a: OrderArrays, t: _Times, chain: Ints) -> None:
    """Time the STEPs, which end the programs and wait for the reductions of their stages."""
    programs, ops, ranks, ends = a.programs, a.ops, a.ranks, t.ends
    reduced_us = _reductions_us(a, t.ends)
    for rank in range(a.num_ranks):
        length = ranks[rank, LENGTH]
        for place in range(length - ranks[rank, NUM_STEPS], length):
            op = programs[rank, place]
            at = ends[programs[rank, place - 1]] if place else 0
            if a.moves.counts[rank]:
                at = max(at, _moved_us(a, rank, place, at))
            if place > a.behind:
                sender = programs[rank, place - a.behind - 1]
                if ops[sender, READER] != NONE:
                    at = max(at, _transfer(t, sender, chain))
            at = max(at, reduced_us[(op - a.num_split) % a.num_stages])
            ends[op] = at + ops[op, DURATION]


@compiled
def _reductions_us(a: OrderArrays, ends: Ints) -> Ints:
    """Return by stage when its all-reduce ends, 0 without one.

    Groups of the same ranks reduce in the order in which the programs end the stages.
    """
    programs, ops, ranks, copies, reductions = a.programs, a.ops, a.ranks, a.copies, a.reductions
    num_stages, count, num_split = a.num_stages, a.num_micro_batches, a.num_split
    reduced = filled(num_stages, 0)
    num_turns = len(reductions)
    if num_turns == 0:
        return reduced
    after, ready_us = filled(num_stages, NONE), filled(num_stages, 0)
    seen = filled(len(copies), 0)
    for rank in range(a.num_ranks):
        for place in range(ranks[rank, LENGTH] - 1, -1, -1):
            op = programs[rank, place]
            if op >= num_split:
                continue
            copy, kind = op // count // 3, op // count % 3
            if not seen[copy] and (kind == 2 or (kind == 1 and ops[op, IS_FUSED])):
                seen[copy] = 1
                stage = copy % num_stages
                listed = place + num_moves_before(a.moves, rank, place)
                after[stage] = max(after[stage], listed)
                ready_us[stage] = max(ready_us[stage], ends[op])
    free_us = filled(num_turns, 0)
    is_done = filled(num_turns, 0)
    for _ in range(num_turns):
        turn = NONE
        for other in range(num_turns):
            if not is_done[other] and (
                turn == NONE or after[reductions[other, STAGE]] < after[reductions[turn, STAGE]]
            ):
                turn = other
        is_done[turn] = 1
        stage, group = reductions[turn, STAGE], reductions[turn, GROUP]
        free_us[group] = max(ready_us[stage], free_us[group]) + reductions[turn, REDUCTION]
        reduced[stage] = free_us[group]
    return reduced
