"""Moves of saved activations to the host's memory and back, as arrays beside the programs.

O and L take no time and count as no place, so that programs hold the other ops alone. A cell is a
micro-batch of a stage copy, with the number copy · micro-batches + micro-batch. Its O and its L
have a gap each, the number of ops of their rank before them:

    place    f          f + 1   …   b − 1       b
    rank     F    O     op      …   op    L     B
    gap           f + 1                   b

Each rank has a link to the host and one back, which serve the moves in the order of their gaps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from synth.costs.costs import HOST, IntArray
from synth.op_kinds import MOVES, OpKind
from synth.schedule.arrays import with_steps
from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.solver.evaluate.op_table import NONE, OpTable

# Of cells: the gaps of O and L, `NONE` where the activation stays; its bytes; the times of moves.
OUT, BACK, MOVED_BYTES, OUT_US, BACK_US = range(5)

# Of ranks, while they are timed: the moves out and back that have a time, the moves out that were
# awaited; when both links are free, and when the last of those moves out has ended.
NUM_OUT, NUM_BACK, NUM_AWAITED, OUT_FREE, BACK_FREE, AWAITED = range(6)


class MoveArrays(NamedTuple):
    """The moves of all ranks. Times are in µs.

    Attributes:
        counts: by rank, the number of activations that move.
        outs, backs: [rank, index], cells in the order of the link.
        cells: a table.
        ends: [cell, `OUT` or `BACK`], the ends of moves in the programs last kept.
        tried_ends: the same in the programs timed last.
        states: a table of ranks.
        kept: [index, column], space for the moves of a rank before a change.
    """

    counts: IntArray
    outs: IntArray
    backs: IntArray
    cells: IntArray
    ends: IntArray
    tried_ends: IntArray
    states: IntArray
    kept: IntArray


class BestMoves(NamedTuple):
    """Copies of the arrays of the same names that say what the best moves are."""

    counts: IntArray
    outs: IntArray
    backs: IntArray
    cells: IntArray

    @classmethod
    def of(cls, moves: MoveArrays) -> "BestMoves":
        """Copy the moves of now."""
        return cls(*(getattr(moves, name).copy() for name in cls._fields))


def move_arrays(table: OpTable, schedule: Schedule) -> MoveArrays:
    """Return the moves of a schedule, none of which is to another rank."""
    count, num_ranks = table.num_micro_batches, schedule.num_ranks
    num_cells = table.num_copies * count
    cells = np.full((num_cells, 5), NONE, np.int64)
    costs = table.problem.costs
    for copy, rank in enumerate(table.copy_ranks):
        size = costs.stages[copy % table.num_stages].saved_bytes
        both_us = (0, 0)
        if costs.links.host is not None:
            both_us = costs.transfer_us(size, rank, HOST), costs.transfer_us(size, HOST, rank)
        cells[copy * count : (copy + 1) * count, MOVED_BYTES:] = (size, *both_us)
    most = max(map(table.copy_ranks.count, range(num_ranks)))
    outs, backs = (np.full((num_ranks, most * count), NONE, np.int64) for _ in range(2))
    counts = np.zeros(num_ranks, np.int64)
    for rank, program in enumerate(schedule.programs):
        place = 0
        listed: dict[int, list[int]] = {OUT: [], BACK: []}
        for op in program:
            if op.kind not in MOVES:
                place += 1
                continue
            cell, column = cell_of(table, op), BACK if op.kind == OpKind.RELOAD else OUT
            cells[cell, column] = place
            listed[column].append(cell)
        counts[rank] = len(listed[OUT])
        outs[rank, : counts[rank]], backs[rank, : counts[rank]] = listed[OUT], listed[BACK]
    return MoveArrays(
        counts,
        outs,
        backs,
        cells,
        ends=np.zeros((num_cells, 2), np.int64),
        tried_ends=np.zeros((num_cells, 2), np.int64),
        states=np.zeros((num_ranks, 6), np.int64),
        kept=np.zeros((most * count, 4), np.int64),
    )


def cell_of(table: OpTable, op: Op) -> int:
    """Return the cell of an op."""
    copy = op.replica * table.num_stages + op.stage
    return copy * table.num_micro_batches + op.microbatch


def without_moves(schedule: Schedule, rank: int) -> list[Op]:
    """Return a rank's ops but for its moves, with STEPs at their end."""
    return [op for op in with_steps(schedule, rank) if op.kind not in MOVES]


def with_moves(
    table: OpTable, rank: int, program: Sequence[Op], moves: MoveArrays | BestMoves
) -> tuple[Op, ...]:
    """Return a rank's program with its moves."""
    count = int(moves.counts[rank])
    before: dict[int, list[Op]] = {}
    for kind, column, listed in (
        (OpKind.OFFLOAD, OUT, moves.outs),
        (OpKind.RELOAD, BACK, moves.backs),
    ):
        for cell in listed[rank, :count].tolist():
            copy, microbatch = divmod(cell, table.num_micro_batches)
            replica, stage = divmod(copy, table.num_stages)
            gap = int(moves.cells[cell, column])
            before.setdefault(gap, []).append(Op(kind, stage, microbatch, replica))
    if not before:
        return tuple(program)
    return tuple(each for place, op in enumerate(program) for each in (*before.get(place, ()), op))
