"""A random walk over programs, compiled by Numba.

The times of what a move affects follow it (`path_kernel`), and the memory of its rank is counted
anew. Where activations move to the host's memory, the order is timed anew from the first op that
the move can affect. All functions change `OrderArrays` in place.
"""

import math

import numpy as np
import numpy.typing as npt

from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.memory_kernel import fits
from synth.solver.evaluate.move_arrays import BACK, MOVED_BYTES, OUT
from synth.solver.evaluate.move_kernel import (
    add_move,
    clamp_move,
    copy_moves,
    follow_length,
    follow_op,
    keep_moves,
    remove_move,
    restore_moves,
    sort_moves,
)
from synth.solver.evaluate.op_table import NONE
from synth.solver.evaluate.order_arrays import (
    DURATION,
    FIRST_LINK,
    FIRST_SENDER,
    FUSED_DURATION,
    IS_FUSED,
    IS_FUSIBLE,
    IS_REPOSTED,
    LENGTH,
    LINK,
    NEXT,
    NUM_STEPS,
    PLACE,
    POST,
    PREVIOUS,
    READER,
    SOURCE,
    SPLIT_DURATION,
    BestPrograms,
    Ints,
    OrderArrays,
)
from synth.solver.evaluate.path_arrays import (
    EARLIER,
    FUSION,
    HAS_TAILS,
    LATER,
    NODE_BITS,
    NUM_RELINKED,
)
from synth.solver.evaluate.path_kernel import find_tails, renew_heads, renew_tails
from synth.solver.evaluate.time_kernel import keep, run, unaffected

Floats = npt.NDArray[np.float64]
Drawn = tuple[float, float, float]


@compiled
def _copy_table(source: Ints, target: Ints) -> None:
    """Copy an array of two dimensions."""
    for row in range(source.shape[0]):
        for column in range(source.shape[1]):
            target[row, column] = source[row, column]


@compiled
def update_links(a: OrderArrays, rank: int) -> None:
    """Update the order of the links of a rank that cross, and where their receives are posted."""
    _update_links(a, rank, 0, a.ranks[rank, LENGTH] - 1)


@compiled
def _update_links(a: OrderArrays, rank: int, first: int, last: int) -> None:
    """Update the links of a rank of which the ops from one place to another send or read."""
    ops, ranks, links, senders, program = a.ops, a.ranks, a.links, a.senders, a.programs[rank]
    for which in range(ranks[rank, FIRST_LINK], ranks[rank + 1, FIRST_LINK]):
        link = a.links_of[which]
        links[link, IS_REPOSTED] = 0
        num_senders = num_readers = 0
        for place in range(first, last + 1):
            sender = ops[program[place], SOURCE]
            num_senders += ops[program[place], LINK] == link
            num_readers += sender != NONE and ops[sender, LINK] == link
        if num_senders > 1:
            # Insertion sort: nearly all of them are in order.
            begin, end = links[link, FIRST_SENDER], links[link + 1, FIRST_SENDER]
            for at in range(begin + 1, end):
                op, to = senders[at], at
                while to > begin and ops[senders[to - 1], PLACE] > ops[op, PLACE]:
                    senders[to] = senders[to - 1]
                    to -= 1
                senders[to] = op
        if num_senders > 1 or num_readers:
            _relink(a, link)


@compiled
def _relink(a: OrderArrays, link: int) -> None:
    """Tell the senders of a link that crosses of their order, and note those that it is new to."""
    ops, links, senders, relinked = a.ops, a.links, a.senders, a.paths.relinked
    counts, ahead = a.paths.counts, a.ahead
    first, behind, earliest = links[link, FIRST_SENDER], NONE, 4 * len(ops)
    for at in range(links[link + 1, FIRST_SENDER] - 1, first - 1, -1):
        op, before = senders[at], senders[at - 1] if at > first else NONE
        earliest = min(earliest, max(0, ops[ops[op, READER], PLACE] - ahead))
        is_reposted = ops[op, POST] != earliest
        if is_reposted or ops[op, PREVIOUS] != before or ops[op, NEXT] != behind:
            ops[op, PREVIOUS], ops[op, NEXT], ops[op, POST] = before, behind, earliest
            links[link, IS_REPOSTED] |= is_reposted
            relinked[counts[NUM_RELINKED]] = op
            counts[NUM_RELINKED] += 1
        behind = op


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
    _update_links(a, rank, min(place, target), max(place, target))
    if a.moves.counts[rank]:
        follow_op(a.moves, rank, place, target)
        _clamp_move(a, op)
        sort_moves(a.moves, rank)


@compiled
def _cell(a: OrderArrays, op: int) -> int:
    """Return the cell of an op."""
    return int(op // a.num_micro_batches // 3 * a.num_micro_batches + op % a.num_micro_batches)


@compiled
def _forward(a: OrderArrays, cell: int) -> int:
    """Return the F of a cell; its B comes a number of micro-batches later."""
    return int(3 * (cell // a.num_micro_batches) * a.num_micro_batches + cell % a.num_micro_batches)


@compiled
def _clamp_move(a: OrderArrays, op: int) -> None:
    """Put the moves of an op's cell between its F and its B."""
    cell = _cell(a, op)
    forward = _forward(a, cell)
    places = a.ops[forward, PLACE], a.ops[forward + a.num_micro_batches, PLACE]
    clamp_move(a.moves, cell, places[0], places[1])


@compiled
def _change_move(
    a: OrderArrays, rank: int, cell: int, drawn: Drawn, stays_share: float, most_ahead: int
) -> int:
    """Add, remove or shift the moves of a cell; return the first gap that changes, or `NONE`.

    Args:
        drawn: three random numbers: to remove it, the distance, and what is shifted to where.
        stays_share: the share of cells with moves whose moves are removed.
        most_ahead: the farthest that L is put before B.
    """
    m, forward = a.moves, _forward(a, cell)
    first, last = a.ops[forward, PLACE] + 1, a.ops[forward + a.num_micro_batches, PLACE]
    if not m.cells[cell, MOVED_BYTES]:
        return NONE
    if m.cells[cell, OUT] == NONE:
        back = last - int(drawn[1] * (most_ahead + 1))
        if back <= first:
            return NONE
        add_move(m, rank, cell, first, back)
        return int(first)
    if drawn[0] < stays_share:
        first = m.cells[cell, OUT]
        remove_move(m, rank, cell)
        return int(first)
    distance = 1 + int(drawn[1] * drawn[1] * most_ahead)
    column = OUT if drawn[2] < 0.5 else BACK
    before = m.cells[cell, column]
    gap = before + (distance if drawn[2] % 0.5 < 0.25 else -distance)
    if column == OUT:
        gap = max(first, min(gap, m.cells[cell, BACK]))
    else:
        gap = max(m.cells[cell, OUT], min(gap, last))
    if gap == before:
        return NONE
    m.cells[cell, column] = gap
    sort_moves(m, rank)
    return int(min(gap, before))


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
        follow_length(a.moves, rank, ops[w, PLACE], -1)
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
        follow_length(a.moves, rank, ops[w, PLACE], 1)
        for which in range(3):
            ops[op, DURATION + which] = ops[op, SPLIT_DURATION + which]
    ops[op, IS_FUSED] = is_fused
    update_links(a, rank)


@compiled
def _splits_in_order(a: OrderArrays, op: int) -> bool:
    """Return True if the W of a BW that is split is behind the W's of earlier micro-batches.

    Bounds of the period count on that. A BW may have been fused past such a W.
    """
    first, place = (op // a.num_micro_batches + 1) * a.num_micro_batches, a.ops[op, PLACE]
    is_in_order = True
    for earlier in range(first, op + a.num_micro_batches):
        is_in_order &= a.ops[earlier, PLACE] <= place
    return is_in_order


@compiled
def walk(
    a: OrderArrays,
    best: BestPrograms,
    value_us: int,
    best_us: int,
    cooling: tuple[float, float],
    shares: tuple[float, float, int],
    host: tuple[float, float, int],
    numbers: Floats,
) -> tuple[int, int, int]:
    """Try random moves of ops; those whose value is within a random limit are made.

    Args:
        best: takes the best programs.
        value_us, best_us: of the programs, and of the best ones.
        cooling: the temperature of the first move in µs, and its factor from move to move.
        shares: of moves that fuse or split, of moves by one place, and the farthest move.
        host: the share of moves that change what goes to the host's memory, the share of these that
            keep an activation, and the farthest that L is put before B.
        numbers: [move, `NUMBERS_PER_MOVE`], random numbers in [0, 1).

    Returns:
        The value, the best value, and the number of moves made.
    """
    programs, ops, ranks, copies, counts = a.programs, a.ops, a.ranks, a.copies, a.paths.counts
    temperature_us, factor = cooling
    fusion_share, adjacent_share, farthest = shares
    host_share, stays_share, most_ahead = host
    num_made, w, w_place, was_fused = 0, 0, 0, False
    has_paths = host_share == 0.0 and 2 * len(ops) < 1 << NODE_BITS
    for rank in range(a.num_ranks):
        has_paths &= a.moves.counts[rank] == 0
    if has_paths and not counts[HAS_TAILS]:
        find_tails(a)
    for move in range(len(numbers)):
        limit_us = value_us - temperature_us * math.log(1.0 - numbers[move, 0])
        temperature_us *= factor
        rank = int(numbers[move, 1] * a.num_ranks)
        place = int(numbers[move, 2] * (ranks[rank, LENGTH] - ranks[rank, NUM_STEPS]))
        op = programs[rank, place]
        row, target, is_fusion = op // a.num_micro_batches, place, False
        num_kept, counts[NUM_RELINKED] = keep_moves(a.moves, rank), 0
        if numbers[move, 3] < fusion_share:
            if row % 3 != 1 or not copies[row // 3, IS_FUSIBLE]:
                continue
            is_fusion = True
            was_fused, w = ops[op, IS_FUSED] == 1, op + a.num_micro_batches
            if was_fused and a.periods > 0 and not _splits_in_order(a, op):
                continue
            w_place = ops[w, PLACE]
            if was_fused:
                horizon_us, first, last = a.ends[op], place, place + 1
                a.ends[w] = a.ends[op]
            else:
                horizon_us, first, last = a.ends[w], place, w_place - 1
            _set_fused(a, rank, op, not was_fused)
            kind, start = FUSION, 0
        elif numbers[move, 3] < fusion_share + host_share:
            which = (numbers[move, 3] - fusion_share) / host_share
            drawn = which, numbers[move, 4], numbers[move, 5]
            start = _change_move(a, rank, _cell(a, op), drawn, stays_share, most_ahead)
            if start == NONE:
                continue
            horizon_us, first, last, kind = 0, 0, 0, FUSION
        else:
            distance = 1
            if numbers[move, 4] >= adjacent_share:
                far = (numbers[move, 4] - adjacent_share) / (1.0 - adjacent_share)
                distance = 2 + int(far * (farthest - 1))
            target = _reach(a, rank, place, distance if numbers[move, 5] >= 0.5 else -distance)
            if target == place:
                continue
            first, last = min(place, target), max(place, target)
            kind, start = EARLIER if target < place else LATER, first
            horizon_us = a.ends[programs[rank, last]]
            _shift(a, rank, place, target)
        found_us = NONE
        if fits(a, rank):
            if has_paths:
                horizon_us += a.lead
                found_us = renew_heads(a, rank, first, last, kind, horizon_us, limit_us)
            else:
                found_us = run(a, unaffected(a, rank, start), limit_us)
                if found_us != NONE:
                    keep(a)
        if found_us == NONE:
            if target != place:
                _shift(a, rank, target, place)
            elif is_fusion:
                _set_fused(a, rank, op, was_fused)
                if not was_fused:
                    _shift(a, rank, ops[w, PLACE], w_place)
            restore_moves(a.moves, rank, num_kept)
            continue
        if has_paths:
            renew_tails(a, rank, first, last)
        num_made += 1
        value_us = found_us
        if value_us < best_us:
            best_us = value_us
            _copy_table(programs, best.programs)
            _copy_table(ops, best.ops)
            _copy_table(ranks, best.ranks)
            copy_moves(a.moves, best.moves)
    return value_us, best_us, num_made
