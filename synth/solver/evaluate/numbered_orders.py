"""Programs of all ranks as op numbers, which change move by move.

The order of transfers follows from them. On a link with transfers of one kind, receives keep the
order of the sends, since ops of one kind keep theirs. On other links (`crossing`) both the order
and the places where receives are posted depend on the programs of both ends.
"""

from collections.abc import Iterable, Sequence

from synth.schedule.arrays import with_steps
from synth.schedule.model import Buffering, Schedule
from synth.schedule.ops import Op
from synth.solver.evaluate.op_table import NONE, OpTable
from synth.solver.instance.instance import BW, STEP

_Link = tuple[int, int]


class NumberedOrders:
    """The programs of a schedule with its buffering.

    Attributes:
        programs: the ops of each rank, STEPs at their ends.
        place: by op, its place on its rank, `NONE` for the W's that BW does.
        is_fused: by B, True if BW does it.
        duration_us, rise_bytes, delta_bytes: by op, fused or not as in the programs.
        previous: by sender, the op that sends before it on its link, or `NONE`.
        crossing: by rank, the links on which not all transfers keep their order.
        post: by sender on such links, the place where the receive is posted.
    """

    def __init__(self, table: OpTable, schedule: Schedule) -> None:
        self.table, self.schedule = table, schedule
        self.set_buffering(schedule.buffering)
        self.place = [NONE] * table.num_ops
        self.is_fused = [False] * table.num_ops
        self.duration_us = table.duration_us.copy()
        self.rise_bytes = table.rise_bytes.copy()
        self.delta_bytes = table.delta_bytes.copy()
        self.programs: list[list[int]] = []
        for rank in range(schedule.num_ranks):
            program = []
            for op in with_steps(schedule, rank):
                number = table.number(op)
                program.append(number)
                if op.kind == BW:
                    self.mark_fused(number)
            self.programs.append(program)
            self.renumber(rank)
        self.num_steps = [sum(op >= table.num_split for op in p) for p in self.programs]
        self._find_links()

    def set_buffering(self, buffering: Buffering) -> None:
        """Use another buffering; values beyond the longest program make no difference."""
        most = 4 * self.table.num_ops
        self.buffering = buffering
        self.ahead = min(most, buffering.receive_ahead)
        self.behind = min(most, buffering.send_behind)

    def mark_fused(self, number: int) -> None:
        """Mark B and W of a micro-batch as fused into BW; the caller changes the programs."""
        copy = self.table.row(number) // 3
        self.is_fused[number] = True
        self.duration_us[number], self.rise_bytes[number], self.delta_bytes[number] = (
            self.table.fused[copy]
        )
        self.place[number + self.table.num_micro_batches] = NONE

    def mark_split(self, number: int) -> None:
        """Mark BW as split into B and W."""
        self.is_fused[number] = False
        for mine, split in (
            (self.duration_us, self.table.duration_us),
            (self.rise_bytes, self.table.rise_bytes),
            (self.delta_bytes, self.table.delta_bytes),
        ):
            mine[number] = split[number]

    def renumber(self, rank: int, start: int = 0, end: int | None = None) -> None:
        """Update the places of a rank's ops, from one place to another."""
        program, place = self.programs[rank], self.place
        for at in range(start, len(program) if end is None else end):
            place[program[at]] = at

    def _find_links(self) -> None:
        table = self.table
        links: dict[_Link, list[int]] = {}
        for source, program in enumerate(self.programs):
            for op in program:
                if table.reader[op] != NONE:
                    target = self.rank_of(table.reader[op])
                    links.setdefault((source, target), []).append(op)
        self.previous = [NONE] * table.num_ops
        self.post = [NONE] * table.num_ops
        self.crossing: list[list[_Link]] = [[] for _ in self.programs]
        self._senders = links
        for (source, target), senders in links.items():
            self._chain(senders)
            if not self._keeps_order(senders):
                self.crossing[source].append((source, target))
                self.crossing[target].append((source, target))
        self.update_posts(link for of_rank in self.crossing for link in of_rank)

    def rank_of(self, number: int) -> int:
        """Return the rank that runs an op other than STEP."""
        return self.table.copy_ranks[self.table.row(number) // 3]

    def _keeps_order(self, senders: Sequence[int]) -> bool:
        rows = {self.table.row(op) for op in senders}
        read_at = [self.place[self.table.reader[op]] for op in senders]
        return len(rows) == 1 and read_at == sorted(read_at)

    def _chain(self, senders: Sequence[int]) -> None:
        before = NONE
        for op in senders:
            self.previous[op] = before
            before = op

    def update_posts(self, links: Iterable[_Link]) -> None:
        """Update the order of some links, and the places where their receives are posted."""
        place, reader, ahead = self.place, self.table.reader, self.ahead
        for link in links:
            senders = self._senders[link]
            senders.sort(key=place.__getitem__)
            self._chain(senders)
            earliest = 4 * self.table.num_ops
            for op in reversed(senders):
                earliest = min(earliest, max(0, place[reader[op]] - ahead))
                self.post[op] = earliest

    def ops(self) -> tuple[tuple[Op, ...], ...]:
        """Return the programs as ops, without STEPs."""
        return tuple(
            tuple(
                op
                for number in program
                if (op := self.table.op(number, is_fused=self.is_fused[number])).kind != STEP
            )
            for program in self.programs
        )
