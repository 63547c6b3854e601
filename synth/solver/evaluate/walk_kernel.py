"""Exact times and memory of programs, and a random walk over them, compiled by Numba.

Times are those of `synth.schedule.simulate`: an op waits for the one before it on its rank, for its
inputs, and for the sends that are awaited right before it; a transfer waits for its maker, for the
op after which its receive is posted, and for the transfer before it on its link. Memory is that of
`synth.schedule.rank_memory`. Every order is evaluated anew, which compiled takes some nanoseconds
per op, less than it takes to keep track of what a move changes.

All functions change `OrderArrays` in place.
"""

import hashlib
import math
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.solver.evaluate import order_arrays
from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.order_arrays import (
    DELTA,
    DURATION,
    FIRST_LINK,
    FIRST_READER,
    FIRST_SENDER,
    FIRST_VALUE,
    FUSED_DURATION,
    GROUP,
    HEADROOM,
    IS_FUSED,
    IS_FUSIBLE,
    IS_SENT,
    LAG,
    LENGTH,
    MAKER,
    NUM_BYTES,
    NUM_STEPS,
    PLACE,
    POST,
    PREVIOUS,
    RANK,
    READER,
    RECEIVED,
    REDUCTION,
    RISE,
    SENT,
    SOURCE,
    SPLIT_DURATION,
    STAGE,
    TARGET,
    BestPrograms,
    Ints,
    OrderArrays,
)

Floats = npt.NDArray[np.float64]

NONE = -1


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
def _filled(size: int, value: int) -> Ints:
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
def _copy_table(source: Ints, target: Ints) -> None:
    """Copy an array of two dimensions."""
    for row in range(source.shape[0]):
        for column in range(source.shape[1]):
            target[row, column] = source[row, column]


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
    return _run(a, np.zeros(a.num_ranks, np.int64), math.inf)


@compiled
def _unaffected(a: OrderArrays, rank: int, start: int) -> Ints:
    """Return by rank how many ops keep their times if a rank's order changes from a place on.

    Those are the ops that start before the first one that the change can affect.
    """
    programs, ops, ranks, ends = a.programs, a.ops, a.ranks, a.ends
    places = _filled(a.num_ranks, 0)
    first = start - a.ahead - 1
    if first < 0:
        return places
    op = programs[rank, first]
    changed_us = ends[op] - ops[op, DURATION]
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
def _run(a: OrderArrays, places: Ints, limit_us: float) -> int:
    """Run each rank from its place on; return the value, or `NONE` if it is above the limit.

    It is `NONE`, too, if ops wait for each other. A rank runs as far as it can, and again once the
    op that it waits for has run.
    """
    programs, ops, ranks, waiting = a.programs, a.ops, a.ranks, a.waiting
    ends, arrivals, behind, num_ranks = a.tried_ends, a.tried_arrivals, a.behind, a.num_ranks
    t = _Times(programs, ops, a.copies, ends, arrivals, a.ahead, a.num_micro_batches)
    chain = np.empty(len(ops), np.int64)
    # By rank: the work left, the op that it waits for, the next rank that waits for the same one.
    left_us = _filled(num_ranks, 0)
    awaited, next_waiting = _filled(num_ranks, NONE), _filled(num_ranks, NONE)
    _copy(a.ends, ends)
    _copy(a.arrivals, arrivals)
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
                at = max(at, arrived)
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
def _value(a: OrderArrays, t: _Times, chain: Ints) -> int:
    """Time the STEPs and return the value."""
    programs, ops, ranks, tried_ends = a.programs, a.ops, a.ranks, a.tried_ends
    _time_steps(a, t, chain)
    makespan_us = period_us = 0
    for rank in range(a.num_ranks):
        first, last = programs[rank, 0], programs[rank, ranks[rank, LENGTH] - 1]
        end_us, begin_us = tried_ends[last], tried_ends[first] - ops[first, DURATION]
        makespan_us = max(makespan_us, end_us)
        period_us = max(period_us, end_us - begin_us)
    return int(a.makespans * makespan_us + a.periods * period_us)


@compiled
def keep(a: OrderArrays) -> None:
    """Keep the times of the programs timed last."""
    _copy(a.tried_ends, a.ends)
    _copy(a.tried_arrivals, a.arrivals)


@compiled
def _time_steps(a: OrderArrays, t: _Times, chain: Ints) -> None:
    """Time the STEPs, which end the programs and wait for the reductions of their stages."""
    programs, ops, ranks, tried_ends = a.programs, a.ops, a.ranks, a.tried_ends
    reduced_us = _reductions_us(a)
    for rank in range(a.num_ranks):
        length = ranks[rank, LENGTH]
        for place in range(length - ranks[rank, NUM_STEPS], length):
            op = programs[rank, place]
            at = tried_ends[programs[rank, place - 1]] if place else 0
            if place > a.behind:
                sender = programs[rank, place - a.behind - 1]
                if ops[sender, READER] != NONE:
                    at = max(at, _transfer(t, sender, chain))
            at = max(at, reduced_us[(op - a.num_split) % a.num_stages])
            tried_ends[op] = at + ops[op, DURATION]


@compiled
def _reductions_us(a: OrderArrays) -> Ints:
    """Return by stage when its all-reduce ends, 0 without one.

    Groups of the same ranks reduce in the order in which the programs end the stages.
    """
    programs, ops, ranks, copies, reductions, tried_ends = (
        a.programs,
        a.ops,
        a.ranks,
        a.copies,
        a.reductions,
        a.tried_ends,
    )
    num_stages, count, num_split = a.num_stages, a.num_micro_batches, a.num_split
    reduced = _filled(num_stages, 0)
    num_turns = len(reductions)
    if num_turns == 0:
        return reduced
    after, ready_us = _filled(num_stages, NONE), _filled(num_stages, 0)
    seen = _filled(len(copies), 0)
    for rank in range(a.num_ranks):
        for place in range(ranks[rank, LENGTH] - 1, -1, -1):
            op = programs[rank, place]
            if op >= num_split:
                continue
            copy, kind = op // count // 3, op // count % 3
            if not seen[copy] and (kind == 2 or (kind == 1 and ops[op, IS_FUSED])):
                seen[copy] = 1
                stage = copy % num_stages
                after[stage] = max(after[stage], place)
                ready_us[stage] = max(ready_us[stage], tried_ends[op])
    free_us = _filled(num_turns, 0)
    is_done = _filled(num_turns, 0)
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


@compiled
def peak_bytes(a: OrderArrays, rank: int) -> int:
    """Return the peak of a rank above its static bytes."""
    programs, ops, ranks, values, readers = a.programs, a.ops, a.ranks, a.values, a.readers
    count, ahead, gap = a.num_micro_batches, a.ahead, a.behind + 1
    num_ops = ranks[rank, LENGTH]
    received, waited, ended = (
        _filled(num_ops + 1, 0),
        _filled(num_ops + 1, 0),
        _filled(num_ops + 1, 0),
    )
    for place in range(num_ops):
        op = programs[rank, place]
        sender = ops[op, SOURCE]
        if sender != NONE:
            post = ops[sender, POST]
            if post == NONE:
                post = max(0, place - ahead)
            received[post] += ops[op, RECEIVED]
    for value in range(ranks[rank, FIRST_VALUE], ranks[rank + 1, FIRST_VALUE]):
        used = ops[values[value, MAKER], PLACE]
        if used == NONE:
            continue
        wait = min(num_ops, used + gap)
        for at in range(values[value, FIRST_READER], values[value + 1, FIRST_READER]):
            op = readers[at]
            # A W that BW does is read at its B.
            read = ops[op, PLACE] if ops[op, PLACE] != NONE else ops[op - count, PLACE]
            used = max(used, read)
        if values[value, IS_SENT] and wait > used:
            waited[wait] += values[value, NUM_BYTES]
        else:
            ended[used] += values[value, NUM_BYTES]
    usage = peak = 0
    for place in range(num_ops):
        op = programs[rank, place]
        usage += received[place]
        peak = max(peak, usage)
        if place >= gap:
            usage -= ops[programs[rank, place - gap], SENT]
        usage -= waited[place]
        peak = max(peak, usage + ops[op, RISE])
        usage += ops[op, DELTA] - ended[place]
    return int(max(peak, usage + received[num_ops]))


@compiled
def update_links(a: OrderArrays, rank: int) -> None:
    """Update the order of the links of a rank that cross, and where their receives are posted."""
    ops, ranks, links, links_of, senders = a.ops, a.ranks, a.links, a.links_of, a.senders
    ahead = a.ahead
    for which in range(ranks[rank, FIRST_LINK], ranks[rank + 1, FIRST_LINK]):
        link = links_of[which]
        first, end = links[link, FIRST_SENDER], links[link + 1, FIRST_SENDER]
        # Insertion sort: nearly all of them are in order.
        for at in range(first + 1, end):
            op, to = senders[at], at
            while to > first and ops[senders[to - 1], PLACE] > ops[op, PLACE]:
                senders[to] = senders[to - 1]
                to -= 1
            senders[to] = op
        before = NONE
        for at in range(first, end):
            ops[senders[at], PREVIOUS] = before
            before = senders[at]
        earliest = 4 * len(ops)
        for at in range(end - 1, first - 1, -1):
            op = senders[at]
            earliest = min(earliest, max(0, ops[ops[op, READER], PLACE] - ahead))
            ops[op, POST] = earliest


@compiled
def _fits(a: OrderArrays, rank: int) -> bool:
    """Return True if a rank, and those whose receives depend on its order, keep their caps."""
    ranks, links, links_of = a.ranks, a.links, a.links_of
    if ranks[rank, HEADROOM] >= 0 and peak_bytes(a, rank) > ranks[rank, HEADROOM]:
        return False
    for which in range(ranks[rank, FIRST_LINK], ranks[rank + 1, FIRST_LINK]):
        other = links[links_of[which], TARGET]
        headroom = ranks[other, HEADROOM]
        if other != rank and headroom >= 0 and peak_bytes(a, other) > headroom:
            return False
    return True


def all_fit(a: OrderArrays) -> bool:
    """Return True if all ranks keep their caps."""
    rooms = a.ranks[: a.num_ranks, HEADROOM].tolist()
    return all(room < 0 or peak_bytes(a, rank) <= room for rank, room in enumerate(rooms))


@compiled
def _keep_order(a: OrderArrays, first: int, second: int) -> bool:
    """Return True if two ops of a rank must stay in order: same row, or same micro-batch."""
    num_stages, count = a.num_stages, a.num_micro_batches
    row, other_row = first // count, second // count
    if row == other_row:
        return True
    if first % count != second % count:
        return False
    copy, kind, other, other_kind = row // 3, row % 3, other_row // 3, other_row % 3
    is_same_replica = copy // num_stages == other // num_stages
    if kind == other_kind or kind == 2:
        # F's of a micro-batch run downwards, its B's upwards, its W's in any order.
        return kind != 2 and (kind == 0) == (copy < other) and is_same_replica
    return other_kind > kind and (copy == other or (kind == 0 and is_same_replica))


@compiled
def _shift(a: OrderArrays, rank: int, place: int, target: int) -> None:
    """Move an op to another place of its rank."""
    programs, ops = a.programs, a.ops
    program = programs[rank]
    op, step = program[place], 1 if target > place else -1
    at = place
    while at != target:
        program[at] = program[at + step]
        ops[program[at], PLACE] = at
        at += step
    program[target] = op
    ops[op, PLACE] = target
    update_links(a, rank)


@compiled
def _reach(a: OrderArrays, rank: int, place: int, distance: int) -> int:
    """Return the place that an op can move to, past ops whose order with it is free."""
    programs, ranks = a.programs, a.ranks
    program, sign = programs[rank], 1 if distance > 0 else -1
    op, last, target = program[place], ranks[rank, LENGTH] - ranks[rank, NUM_STEPS], place
    for _ in range(abs(distance)):
        beside = target + sign
        if beside < 0 or beside >= last:
            break
        other = program[beside]
        if _keep_order(a, op, other) if sign > 0 else _keep_order(a, other, op):
            break
        target = beside
    return target


@compiled
def _set_fused(a: OrderArrays, rank: int, op: int, is_fused: bool) -> None:
    """Fuse a B with its W, which leaves the program, or split a BW; W comes right behind its B."""
    programs, ops, ranks, copies = a.programs, a.ops, a.ranks, a.copies
    count, program = a.num_micro_batches, programs[rank]
    w = op + count
    if is_fused:
        for at in range(ops[w, PLACE], ranks[rank, LENGTH] - 1):
            program[at] = program[at + 1]
            ops[program[at], PLACE] = at
        ops[w, PLACE] = NONE
        ranks[rank, LENGTH] -= 1
        for which in range(3):
            ops[op, DURATION + which] = copies[op // count // 3, FUSED_DURATION + which]
    else:
        for at in range(ranks[rank, LENGTH], ops[op, PLACE] + 1, -1):
            program[at] = program[at - 1]
            ops[program[at], PLACE] = at
        program[ops[op, PLACE] + 1] = w
        ops[w, PLACE] = ops[op, PLACE] + 1
        ranks[rank, LENGTH] += 1
        for which in range(3):
            ops[op, DURATION + which] = ops[op, SPLIT_DURATION + which]
    ops[op, IS_FUSED] = is_fused
    update_links(a, rank)


@compiled
def walk(
    a: OrderArrays,
    best: BestPrograms,
    value_us: int,
    best_us: int,
    cooling: tuple[float, float],
    shares: tuple[float, float, int],
    numbers: Floats,
) -> tuple[int, int, int]:
    """Try random moves of ops; those whose value is within a random limit are made.

    Args:
        best: takes the best programs.
        value_us, best_us: of the programs, and of the best ones.
        cooling: the temperature of the first move in µs, and its factor from move to move.
        shares: of moves that fuse or split, of moves by one place, and the farthest move.
        numbers: [move, `NUMBERS_PER_MOVE`], random numbers in [0, 1).

    Returns:
        The value, the best value, and the number of moves made.
    """
    programs, ops, ranks, copies = a.programs, a.ops, a.ranks, a.copies
    temperature_us, factor = cooling
    fusion_share, adjacent_share, farthest = shares
    num_made, w, w_place, was_fused = 0, 0, 0, False
    for move in range(len(numbers)):
        limit_us = value_us - temperature_us * math.log(1.0 - numbers[move, 0])
        temperature_us *= factor
        rank = int(numbers[move, 1] * a.num_ranks)
        place = int(numbers[move, 2] * (ranks[rank, LENGTH] - ranks[rank, NUM_STEPS]))
        op = programs[rank, place]
        row, target = op // a.num_micro_batches, place
        if numbers[move, 3] < fusion_share:
            if row % 3 != 1 or not copies[row // 3, IS_FUSIBLE]:
                continue
            was_fused, w = ops[op, IS_FUSED] == 1, op + a.num_micro_batches
            w_place = ops[w, PLACE]
            _set_fused(a, rank, op, not was_fused)
            start = 0
        else:
            distance = 1
            if numbers[move, 4] >= adjacent_share:
                far = (numbers[move, 4] - adjacent_share) / (1.0 - adjacent_share)
                distance = 2 + int(far * (farthest - 1))
            target = _reach(a, rank, place, distance if numbers[move, 5] >= 0.5 else -distance)
            if target == place:
                continue
            _shift(a, rank, place, target)
            start = min(place, target)
        found_us = NONE
        if _fits(a, rank):
            found_us = _run(a, _unaffected(a, rank, start), limit_us)
        if found_us == NONE:
            if target != place:
                _shift(a, rank, target, place)
            else:
                _set_fused(a, rank, op, was_fused)
                if not was_fused:
                    _shift(a, rank, ops[w, PLACE], w_place)
            continue
        keep(a)
        num_made += 1
        value_us = found_us
        if value_us < best_us:
            best_us = value_us
            _copy_table(programs, best.programs)
            _copy_table(ops, best.ops)
            _copy_table(ranks, best.ranks)
    return value_us, best_us, num_made


def note_compiled() -> None:
    """Note on disk that all functions are compiled."""
    mark = _mark()
    if mark is not None:
        mark.touch()


def remove_compiled() -> None:
    """Remove the compiled code of this module from the disk."""
    dispatcher: Any = walk
    folder = Path(dispatcher.stats.cache_path)
    for path in (*folder.glob("walk_kernel.*.nb[ci]"), *folder.glob("walk-*.compiled")):
        path.unlink(missing_ok=True)


def is_compiled() -> bool:
    """Return True if nothing is left to compile, or there is no Numba to compile with."""
    dispatcher: Any = walk
    if not hasattr(dispatcher, "stats") or dispatcher.signatures:
        return True
    mark = _mark()
    return mark is not None and mark.exists()


def _mark() -> Path | None:
    """Return the file that says: this code is compiled, by these versions for this processor."""
    dispatcher: Any = walk
    if not hasattr(dispatcher, "stats") or dispatcher.stats.cache_path is None:
        return None
    made_by = (version("numba"), sys.version, platform.processor())
    files = (__file__, str(order_arrays.__file__))
    code = b"".join(Path(file).read_bytes() for file in files)
    digest = hashlib.sha256(code + repr(made_by).encode()).hexdigest()[:16]
    return Path(dispatcher.stats.cache_path) / f"walk-{digest}.compiled"
