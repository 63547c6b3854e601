"""Times and changes of moves to the host's memory, compiled by Numba.

The links of a rank to its host and back depend on the rank's own ops alone, so their times follow
while the rank is timed from place to place.
"""

from synth.costs.costs import IntArray
from synth.solver.evaluate.compiled import compiled
from synth.solver.evaluate.move_arrays import (
    AWAITED,
    BACK,
    BACK_FREE,
    BACK_US,
    MOVED_BYTES,
    NUM_AWAITED,
    NUM_BACK,
    NUM_OUT,
    OUT,
    OUT_FREE,
    OUT_US,
    BestMoves,
    MoveArrays,
)
from synth.solver.evaluate.op_table import NONE


@compiled
def begin_moves(m: MoveArrays, places: IntArray) -> None:
    """Forget all times but those kept of the gaps before a place of each rank."""
    cells, ends, tried = m.cells, m.ends, m.tried_ends
    for rank in range(len(places)):
        state, place, at = m.states[rank], places[rank], 0
        state[NUM_AWAITED] = state[AWAITED] = state[OUT_FREE] = state[BACK_FREE] = 0
        while at < m.counts[rank] and cells[m.outs[rank, at], OUT] < place:
            cell = m.outs[rank, at]
            state[OUT_FREE] = tried[cell, OUT] = ends[cell, OUT]
            at += 1
        state[NUM_OUT], at = at, 0
        while at < m.counts[rank] and cells[m.backs[rank, at], BACK] < place:
            cell = m.backs[rank, at]
            state[BACK_FREE] = tried[cell, BACK] = ends[cell, BACK]
            at += 1
        state[NUM_BACK] = at


@compiled
def keep_ends(m: MoveArrays) -> None:
    """Keep the times of the moves timed last."""
    for rank in range(len(m.counts)):
        for at in range(m.counts[rank]):
            cell = m.outs[rank, at]
            m.ends[cell, OUT] = m.tried_ends[cell, OUT]
            m.ends[cell, BACK] = m.tried_ends[cell, BACK]


@compiled
def awaited_moves_us(m: MoveArrays, rank: int, place: int, behind: int, before_us: int) -> int:
    """Return when the moves out have ended that are awaited before a place.

    Time the moves of the gap before it. Each place is asked for after those before it.

    Args:
        before_us: the end of the op before the place.
    """
    state, cells, ends, count = m.states[rank], m.cells, m.tried_ends, m.counts[rank]
    while state[NUM_OUT] < count:
        cell = m.outs[rank, state[NUM_OUT]]
        if cells[cell, OUT] > place:
            break
        state[OUT_FREE] = max(before_us, state[OUT_FREE]) + cells[cell, OUT_US]
        ends[cell, OUT] = state[OUT_FREE]
        state[NUM_OUT] += 1
    while state[NUM_BACK] < count:
        cell = m.backs[rank, state[NUM_BACK]]
        if cells[cell, BACK] > place:
            break
        ready_us = max(before_us, ends[cell, OUT])
        state[BACK_FREE] = max(ready_us, state[BACK_FREE]) + cells[cell, BACK_US]
        ends[cell, BACK] = state[BACK_FREE]
        state[NUM_BACK] += 1
    while state[NUM_AWAITED] < state[NUM_OUT]:
        cell = m.outs[rank, state[NUM_AWAITED]]
        if cells[cell, OUT] + behind > place:
            break
        state[AWAITED] = ends[cell, OUT]
        state[NUM_AWAITED] += 1
    return int(state[AWAITED])


@compiled
def num_moves_before(m: MoveArrays, rank: int, place: int) -> int:
    """Return the number of O's and L's of a rank that stand before a place."""
    number = 0
    for at in range(m.counts[rank]):
        cell = m.outs[rank, at]
        number += int(m.cells[cell, OUT] <= place) + int(m.cells[cell, BACK] <= place)
    return number


@compiled
def add_moved_bytes(
    m: MoveArrays, rank: int, behind: int, received: IntArray, waited: IntArray
) -> None:
    """Add, by place, the buffers of moves back, and the bytes of moves out that are awaited."""
    last = len(waited) - 1
    for at in range(m.counts[rank]):
        cell = m.outs[rank, at]
        size = m.cells[cell, MOVED_BYTES]
        received[m.cells[cell, BACK]] += size
        waited[min(last, m.cells[cell, OUT] + behind)] += size


@compiled
def keep_moves(m: MoveArrays, rank: int) -> int:
    """Keep the moves of a rank and return their number, for `restore_moves`."""
    count = m.counts[rank]
    for at in range(count):
        out, back = m.outs[rank, at], m.backs[rank, at]
        m.kept[at, 0], m.kept[at, 1] = out, m.cells[out, OUT]
        m.kept[at, 2], m.kept[at, 3] = back, m.cells[back, BACK]
    return int(count)


@compiled
def restore_moves(m: MoveArrays, rank: int, count: int) -> None:
    """Make the moves of a rank those that were kept."""
    for at in range(m.counts[rank]):
        cell = m.outs[rank, at]
        m.cells[cell, OUT] = m.cells[cell, BACK] = NONE
    for at in range(count):
        out, back = m.kept[at, 0], m.kept[at, 2]
        m.outs[rank, at], m.cells[out, OUT] = out, m.kept[at, 1]
        m.backs[rank, at], m.cells[back, BACK] = back, m.kept[at, 3]
    m.counts[rank] = count


@compiled
def _sort_by_gap(m: MoveArrays, rank: int, listed: IntArray, column: int) -> None:
    """Sort the moves of a link by insertion: nearly all of them are in order."""
    for at in range(1, m.counts[rank]):
        cell, to = listed[rank, at], at
        while to > 0 and m.cells[listed[rank, to - 1], column] > m.cells[cell, column]:
            listed[rank, to] = listed[rank, to - 1]
            to -= 1
        listed[rank, to] = cell


@compiled
def sort_moves(m: MoveArrays, rank: int) -> None:
    """Put the moves of a rank into the order of their gaps."""
    _sort_by_gap(m, rank, m.outs, OUT)
    _sort_by_gap(m, rank, m.backs, BACK)


@compiled
def follow_op(m: MoveArrays, rank: int, place: int, target: int) -> None:
    """Let the gaps of a rank follow an op that goes from one place to another."""
    for at in range(m.counts[rank]):
        cell = m.outs[rank, at]
        for column in range(2):
            gap = m.cells[cell, column]
            if place < gap <= target:
                m.cells[cell, column] = gap - 1
            elif target < gap <= place:
                m.cells[cell, column] = gap + 1


@compiled
def follow_length(m: MoveArrays, rank: int, place: int, change: int) -> None:
    """Let the gaps behind a place follow an op that comes there (1) or leaves it (−1)."""
    for at in range(m.counts[rank]):
        cell = m.outs[rank, at]
        for column in range(2):
            if m.cells[cell, column] > place:
                m.cells[cell, column] += change


@compiled
def clamp_move(m: MoveArrays, cell: int, forward: int, backward: int) -> None:
    """Put the moves of a cell between the places of its F and its B, if it has any."""
    cells = m.cells
    if cells[cell, OUT] != NONE:
        cells[cell, OUT] = max(forward + 1, min(cells[cell, OUT], backward))
        cells[cell, BACK] = max(cells[cell, OUT], min(cells[cell, BACK], backward))


@compiled
def remove_move(m: MoveArrays, rank: int, cell: int) -> None:
    """Let an activation stay."""
    count = m.counts[rank]
    for listed in (m.outs, m.backs):
        to = 0
        for at in range(count):
            if listed[rank, at] != cell:
                listed[rank, to] = listed[rank, at]
                to += 1
    m.cells[cell, OUT] = m.cells[cell, BACK] = NONE
    m.counts[rank] = count - 1


@compiled
def add_move(m: MoveArrays, rank: int, cell: int, out: int, back: int) -> None:
    """Let an activation move that stays."""
    count = m.counts[rank]
    m.cells[cell, OUT], m.cells[cell, BACK] = out, back
    m.outs[rank, count] = m.backs[rank, count] = cell
    m.counts[rank] = count + 1
    sort_moves(m, rank)


@compiled
def copy_moves(m: MoveArrays, best: BestMoves) -> None:
    """Copy the moves of now."""
    for rank in range(len(m.counts)):
        best.counts[rank] = m.counts[rank]
        for at in range(m.counts[rank]):
            best.outs[rank, at], best.backs[rank, at] = m.outs[rank, at], m.backs[rank, at]
    for cell in range(m.cells.shape[0]):
        best.cells[cell, OUT], best.cells[cell, BACK] = m.cells[cell, OUT], m.cells[cell, BACK]
