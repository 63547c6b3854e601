"""Programs of all ranks as arrays of op numbers, with all that their times and memory depend on.

Ops have the numbers of `OpTable`; O and L are apart (`move_arrays`). `walk_kernel` evaluates and
changes the programs in place. Tables
have a row for each op, rank, stage copy, link or value; the constants below number their columns.
A column FIRST_… says where the row's part of a longer array begins; it ends where that of the next
row begins, so such tables have one row more.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from synth.schedule.model import Schedule
from synth.schedule.ops import Op
from synth.solver.evaluate.move_arrays import (
    BestMoves,
    MoveArrays,
    move_arrays,
    with_moves,
    without_moves,
)
from synth.solver.evaluate.op_table import NONE, OpTable
from synth.solver.evaluate.path_arrays import PathArrays, path_arrays
from synth.solver.instance.instance import BW

Ints = npt.NDArray[np.int64]

# Of ops: the maker of what it reads from another rank, the reader of what it sends, or `NONE`; the
# time of that transfer; the op that sends before it on its link; where the receive is posted, on a
# link that crosses; its place on its rank, `NONE` for the W's that BW does; what it takes, fused or
# not as in the programs, and if it is not fused.
SOURCE, READER, LAG, PREVIOUS, POST, PLACE, DURATION, RISE, DELTA = range(9)
SPLIT_DURATION, SPLIT_RISE, SPLIT_DELTA = range(9, 12)
# The bytes of the receive and those that the awaited send frees; 1 for a B that BW does; the first
# part of the op, which does not wait for what it reads; its rank; the op that sends behind it on
# its link, and the number of that link, if it crosses.
RECEIVED, SENT, IS_FUSED, LEAD, AT_RANK, NEXT, LINK = range(12, 19)
_OP_COLUMNS = 19

# Of ranks: the number of ops and of STEPs; the cap less the static bytes, `NONE` without a cap; the
# links that cross; the values that are freed where the order says.
LENGTH, NUM_STEPS, HEADROOM, FIRST_LINK, FIRST_VALUE = range(5)

# Of stage copies: the rank; 1 if B and W may be fused; what BW takes.
RANK, IS_FUSIBLE, FUSED_DURATION = range(3)

# Of links that cross, on which not all transfers keep their order: the rank that receives; 1 if the
# last change moved one of its receives.
TARGET, FIRST_SENDER, IS_REPOSTED = range(3)

# Of values that are freed after their last reader, or where their send is awaited.
NUM_BYTES, MAKER, IS_SENT, FIRST_READER = range(4)

# Of stages that are all-reduced: the stage, the time, and the number of the set of ranks.
STAGE, REDUCTION, GROUP = range(3)

# Random numbers that a move takes.
NUMBERS_PER_MOVE = 6


class OrderArrays(NamedTuple):
    """The programs of a schedule, and tables. Times are in µs, memory in bytes.

    Attributes:
        num_split: the number of the first STEP.
        ahead: the receives that are posted ahead.
        behind: the ops behind which a send is awaited.
        lead: the longest first part of an op that does not wait for what it reads.
        makespans, periods: the weights of both in the value.
        programs: [rank, place], the ops of each rank, STEPs at their ends.
        ops, ranks, copies, links, values, reductions: tables.
        links_of: the links of each rank that cross.
        senders: the ops that send on each link that crosses, in order.
        readers: the readers of each value.
        ends, arrivals: by op, the end of it and of its transfer, in the programs last kept.
        heads: both, one behind the other.
        tried_ends, tried_arrivals: the same in the programs timed last.
        waiting: by op, a rank that waits for it, or `NONE`.
        moves: those of saved activations to the host's memory and back.
        paths: space for `path_kernel`.
    """

    num_ranks: int
    num_stages: int
    num_micro_batches: int
    num_split: int
    ahead: int
    behind: int
    lead: int
    makespans: int
    periods: int
    programs: Ints
    ops: Ints
    ranks: Ints
    copies: Ints
    links: Ints
    values: Ints
    reductions: Ints
    links_of: Ints
    senders: Ints
    readers: Ints
    ends: Ints
    arrivals: Ints
    heads: Ints
    tried_ends: Ints
    tried_arrivals: Ints
    waiting: Ints
    moves: MoveArrays
    paths: PathArrays


class BestPrograms(NamedTuple):
    """Copies of the arrays of the same names that say what the best programs are."""

    programs: Ints
    ops: Ints
    ranks: Ints
    moves: BestMoves

    @classmethod
    def of(cls, arrays: OrderArrays) -> "BestPrograms":
        """Copy the programs of now."""
        copies = arrays.programs.copy(), arrays.ops.copy(), arrays.ranks.copy()
        return cls(*copies, BestMoves.of(arrays.moves))


_BY_OP = ("tried_ends", "tried_arrivals", "waiting")


def order_arrays(
    table: OpTable, schedule: Schedule, headrooms: Sequence[int | None], is_fusible: Sequence[bool]
) -> OrderArrays:
    """Return the arrays of a schedule; STEPs are added.

    Args:
        headrooms: by rank, the cap less the static bytes; None without a cap.
        is_fusible: by stage copy, True if its B's and W's may be fused.
    """
    problem = table.problem
    listed = [
        [table.number(op) for op in without_moves(schedule, rank)]
        for rank in range(schedule.num_ranks)
    ]
    ops = _ops(table, listed)
    fused = [table.number(op) for program in schedule.programs for op in program if op.kind == BW]
    for op in fused:
        ops[op, IS_FUSED] = 1
        ops[op, DURATION:SPLIT_DURATION] = table.fused[table.row(op) // 3]
    # BW may be split, which lengthens its program.
    programs = _full((len(listed), max(map(len, listed)) + len(fused) + 1))
    for rank, program in enumerate(listed):
        programs[rank, : len(program)] = program
    links = _Links(table, listed, ops)
    most = 4 * table.num_ops
    values = [value for of_rank in table.shared for value in of_rank]
    steps = [sum(op >= table.num_split for op in program) for program in listed]
    heads = _full(2 * table.num_ops)
    rooms = [NONE if headroom is None else headroom for headroom in headrooms]
    return OrderArrays(
        num_ranks=schedule.num_ranks,
        num_stages=table.num_stages,
        num_micro_batches=table.num_micro_batches,
        num_split=table.num_split,
        ahead=min(most, schedule.buffering.receive_ahead),
        behind=min(most, schedule.buffering.send_behind),
        lead=max(table.lead_us),
        makespans=problem.objective.makespans,
        periods=problem.objective.periods,
        programs=programs,
        ops=ops,
        ranks=_table(
            map(len, listed),
            steps,
            rooms,
            _firsts(map(len, links.of_rank)),
            _firsts(map(len, table.shared)),
        ),
        copies=_table(table.copy_ranks, is_fusible, *zip(*table.fused, strict=True)),
        links=_table(links.targets, _firsts(map(len, links.crossing)), [1] * len(links.targets)),
        values=_table(
            [value.num_bytes for value in values],
            [value.maker for value in values],
            [value.is_sent for value in values],
            _firsts(len(value.readers) for value in values),
        ),
        reductions=_table(*_reductions(table)),
        links_of=_ints(link for of_rank in links.of_rank for link in of_rank),
        senders=_ints(op for senders in links.crossing for op in senders),
        readers=_ints(op for value in values for op in value.readers),
        ends=heads[: table.num_ops],
        arrivals=heads[table.num_ops :],
        heads=heads,
        **{name: _full(table.num_ops) for name in _BY_OP},
        moves=move_arrays(table, schedule),
        paths=path_arrays(table.num_ops),
    )


def programs_of(table: OpTable, of: OrderArrays | BestPrograms) -> tuple[tuple[Op, ...], ...]:
    """Return programs as ops, without STEPs."""
    rows = zip(of.programs.tolist(), of.ranks.tolist(), strict=False)
    programs = (
        [
            table.op(op, is_fused=bool(of.ops[op, IS_FUSED]))
            for op in row[: of_rank[LENGTH] - of_rank[NUM_STEPS]]
        ]
        for row, of_rank in rows
    )
    return tuple(
        with_moves(table, rank, program, of.moves) for rank, program in enumerate(programs)
    )


def _ops(table: OpTable, programs: list[list[int]]) -> Ints:
    """Return the table of ops, none of them fused; what is not known yet is `NONE`."""
    ops = _full((table.num_ops, _OP_COLUMNS))
    ops[:, IS_FUSED] = 0
    costs = np.array((table.duration_us, table.rise_bytes, table.delta_bytes)).T
    ops[:, DURATION:SPLIT_DURATION] = ops[:, SPLIT_DURATION:RECEIVED] = costs
    for column, values in (
        (SOURCE, table.source),
        (READER, table.reader),
        (RECEIVED, table.received_bytes),
        (SENT, table.sent_bytes),
        (LAG, table.lag_us),
        (LEAD, table.lead_us),
        (AT_RANK, [table.rank_of(op) for op in range(table.num_ops)]),
    ):
        ops[:, column] = values
    for program in programs:
        ops[program, PLACE] = range(len(program))
    return ops


class _Links:
    """The transfers by link; on those that cross, not all transfers keep their order."""

    def __init__(self, table: OpTable, programs: list[list[int]], ops: Ints) -> None:
        by_ends: dict[tuple[int, int], list[int]] = {}
        for rank, program in enumerate(programs):
            for op in program:
                if table.reader[op] != NONE:
                    to = table.copy_ranks[table.row(table.reader[op]) // 3]
                    by_ends.setdefault((rank, to), []).append(op)
        self.crossing: list[list[int]] = []
        self.targets: list[int] = []
        self.of_rank: list[list[int]] = [[] for _ in programs]
        for (rank, to), senders in by_ends.items():
            ops[senders[1:], PREVIOUS], ops[senders[:-1], NEXT] = senders[:-1], senders[1:]
            read_at = [int(ops[table.reader[op], PLACE]) for op in senders]
            if len({table.row(op) for op in senders}) > 1 or read_at != sorted(read_at):
                for end in (rank, to):
                    self.of_rank[end].append(len(self.crossing))
                ops[senders, LINK] = len(self.crossing)
                self.crossing.append(senders)
                self.targets.append(to)


def _reductions(table: OpTable) -> tuple[list[int], list[int], list[int]]:
    """Return the stages whose gradients are reduced, the times, and the numbers of their ranks."""
    groups: dict[tuple[int, ...], int] = {}
    stages, times_us, numbers = [], [], []
    for stage in range(table.num_stages):
        ranks = tuple(sorted({ranks[stage] for ranks in table.placement.ranks}))
        time_us = table.problem.reduction_us(stage)
        if len(ranks) > 1 or time_us > 0:  # also one that takes no time makes STEPs wait
            stages.append(stage)
            times_us.append(time_us)
            numbers.append(groups.setdefault(ranks, len(groups)))
    return stages, times_us, numbers


def _table(*columns: Iterable[Any]) -> Ints:
    """Return a table of columns; shorter ones end with `NONE`."""
    listed = [list(column) for column in columns]
    table = _full((max(map(len, listed)), len(listed)))
    for at, column in enumerate(listed):
        table[: len(column), at] = column
    return table


def _full(shape: int | tuple[int, int]) -> Ints:
    return np.full(shape, NONE, np.int64)


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), np.int64)


def _firsts(lengths: Iterable[int]) -> Iterable[int]:
    return accumulate(lengths, initial=0)
