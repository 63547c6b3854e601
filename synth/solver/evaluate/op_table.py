"""The ops of a problem by number, with everything that their exact memory and times depend on.

An op has the number (3 · copy + kind) · micro-batches + micro-batch, kinds being F, B and W; BW has
the number of its B. The STEPs follow, copy by copy. All of it is derived from `Effects`, the table
of the data model, and so agrees with lowering.

Bytes of a value are freed in one of three ways: at one op of its rank in any case; where its send
is awaited; or, if that depends on the order, at the latest of some ops and that wait (`Shared`).
"""

from collections.abc import Iterator
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.schedule.lowering.effects import Effects
from synth.schedule.ops import Op, Value
from synth.solver.instance.instance import BW, SPLIT, STEP, B, F, W
from synth.solver.problem import Problem

# No op.
NONE = -1


class Shared(NamedTuple):
    """A value that is freed after its last reader, or where its send is awaited, if that is later.

    Readers are op numbers; a W that BW does counts as its B.
    """

    num_bytes: int
    maker: int
    readers: tuple[int, ...]
    is_sent: bool


class _Kind(NamedTuple):
    """Time and memory of all ops of one kind and stage copy."""

    duration_us: int
    rise_bytes: int
    delta_bytes: int


class OpTable:
    """Tables by op number.

    Attributes:
        copy_ranks: by stage copy, its rank.
        duration_us, rise_bytes: by op, split into B and W.
        delta_bytes: by op, bytes that it makes less those freed when it ends.
        fused: by stage copy, (duration, rise, delta) of BW.
        received_bytes: by op, the receive buffer of the value that it reads first from another
            rank.
        source: by op, the maker of that value, or `NONE`.
        reader: by op, the first reader of the value that it sends, or `NONE`.
        sent_bytes: by op, bytes freed where its send is awaited.
        lag_us: by op, the time of its transfer.
        lead_us: by op, its first part, which does not wait for what it reads from another rank.
        shared: by rank, values whose last reader depends on the order.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.placement = problem, problem.placement
        self.num_micro_batches = problem.num_micro_batches
        self.num_stages = self.placement.num_stages
        self.copy_ranks = [rank for ranks in self.placement.ranks for rank in ranks]
        self.num_copies = len(self.copy_ranks)
        self.num_split = 3 * self.num_copies * self.num_micro_batches
        self.num_ops = self.num_split + self.num_copies
        self._effects = Effects(problem.costs, self.num_micro_batches, placement=self.placement)
        self.received_bytes = [0] * self.num_ops
        self.source = [NONE] * self.num_ops
        self.reader = [NONE] * self.num_ops
        self.sent_bytes = [0] * self.num_ops
        self.lag_us = [0] * self.num_ops
        self.lead_us = [0] * self.num_ops
        self.shared: list[list[Shared]] = [[] for _ in range(self.placement.num_ranks)]
        # Bytes of the values that die at an op of a (copy, kind); those that its own B makes are
        # apart, since BW does not make them.
        self._freed: dict[tuple[int, OpKind], int] = {}
        self._freed_own: dict[tuple[int, OpKind], int] = {}
        for value, maker in self._values():
            self._add(value, *maker)
        self._add_kinds()

    def number(self, op: Op) -> int:
        """Return the number of an op."""
        copy = op.replica * self.num_stages + op.stage
        if op.kind == STEP:
            return self.num_split + copy
        return self._first(copy, op.kind) + op.microbatch

    def op(self, number: int, *, is_fused: bool = False) -> Op:
        """Return the op of a number."""
        if number >= self.num_split:
            replica, stage = divmod(number - self.num_split, self.num_stages)
            return Op(STEP, stage, 0, replica)
        row, microbatch = divmod(number, self.num_micro_batches)
        copy, kind = divmod(row, 3)
        replica, stage = divmod(copy, self.num_stages)
        return Op(BW if is_fused else SPLIT[kind], stage, microbatch, replica)

    def row(self, number: int) -> int:
        """Return 3 · copy + kind; ops of one row keep their order."""
        return number // self.num_micro_batches

    def rank_of(self, number: int) -> int:
        """Return the rank of an op."""
        if number >= self.num_split:
            return self.copy_ranks[number - self.num_split]
        return self.copy_ranks[self.row(number) // 3]

    def _first(self, copy: int, kind: OpKind) -> int:
        code = 1 if kind == BW else SPLIT.index(kind)
        return (3 * copy + code) * self.num_micro_batches

    def _op(self, copy: int, kind: OpKind) -> Op:
        replica, stage = divmod(copy, self.num_stages)
        return Op(kind, stage, 0, replica)

    def _values(self) -> Iterator[tuple[Value, tuple[int, OpKind]]]:
        """Yield the values of micro-batch 0, with the (copy, kind) of their makers."""
        for copy in range(self.num_copies):
            for kind in (F, B):
                for value in self._effects.makes(self._op(copy, kind)):
                    yield value, (copy, kind)

    def _readers(self, value: Value) -> Iterator[tuple[int, OpKind]]:
        """Yield the (copy, kind) that read a value, as B and W, in a micro-batch's order."""
        near = [s for s in (value.stage, value.stage + 1) if s < self.num_stages]
        copies = [value.replica * self.num_stages + stage for stage in near]
        for kind, among in ((F, copies), (B, copies[::-1]), (W, copies)):
            for copy in among:
                if value in self._effects.reads(self._op(copy, kind)):
                    yield copy, kind

    def _add(self, value: Value, copy: int, kind: OpKind) -> None:
        """Note where the bytes of a value are freed on each rank that has it."""
        size, rank = self._effects.own_bytes_of(value), self.copy_ranks[copy]
        readers = list(self._readers(value))
        away = [reader for reader in readers if self.copy_ranks[reader[0]] != rank]
        home = [reader for reader in readers if self.copy_ranks[reader[0]] == rank]
        if away:
            self._send(value, (copy, kind), away[0])
            self._free(self._effects.bytes_of(value), away, (copy, kind))
        lasts = [one for one in home if not any(_precedes(one, other) for other in home)]
        if away and not home:
            self._fill(self.sent_bytes, copy, kind, size)
        elif away or len(lasts) > 1:
            self._share(size, (copy, kind), lasts, is_sent=bool(away))
        else:
            self._free(size, home, (copy, kind))

    def _free(
        self, size: int, readers: list[tuple[int, OpKind]], maker: tuple[int, OpKind]
    ) -> None:
        """Free a value after its last reader, or after its maker if it has none."""
        at = readers[-1] if readers else maker
        is_own = maker == (at[0], B) and at[1] != B
        freed = self._freed_own if is_own else self._freed
        freed[at] = freed.get(at, 0) + size

    def _share(
        self,
        size: int,
        maker: tuple[int, OpKind],
        readers: list[tuple[int, OpKind]],
        *,
        is_sent: bool,
    ) -> None:
        of_rank = self.shared[self.copy_ranks[maker[0]]]
        for microbatch in range(self.num_micro_batches if size else 0):
            numbers = tuple(self._first(*reader) + microbatch for reader in readers)
            of_rank.append(Shared(size, self._first(*maker) + microbatch, numbers, is_sent))

    def _send(self, value: Value, maker: tuple[int, OpKind], reader: tuple[int, OpKind]) -> None:
        size = self._effects.bytes_of(value)
        ends = self.copy_ranks[maker[0]], self.copy_ranks[reader[0]]
        self._fill(self.received_bytes, *reader, size)
        transfer_us = self.problem.costs.transfer_us(size, *ends)
        self._fill(self.lag_us, *maker, transfer_us)
        if maker[1] == B:
            stage = reader[0] % self.num_stages
            self._fill(self.lead_us, *reader, self.problem.lead_us(stage, transfer_us))
        sent, read = self._first(*maker), self._first(*reader)
        for microbatch in range(self.num_micro_batches):
            self.source[read + microbatch] = sent + microbatch
            self.reader[sent + microbatch] = read + microbatch

    def _fill(self, table: list[int], copy: int, kind: OpKind, value: int) -> None:
        first = self._first(copy, kind)
        table[first : first + self.num_micro_batches] = [value] * self.num_micro_batches

    def _add_kinds(self) -> None:
        kinds = [[self._kind(c, kind) for kind in SPLIT] for c in range(self.num_copies)]
        steps = [self._kind(c, STEP) for c in range(self.num_copies)]
        passes = range(self.num_micro_batches)
        rows = [one for of_copy in kinds for one in of_copy for _ in passes]
        self.duration_us, self.rise_bytes, self.delta_bytes = (
            list(column) for column in zip(*rows, *steps, strict=True)
        )
        self.fused = [self._kind(copy, BW) for copy in range(self.num_copies)]

    def _kind(self, copy: int, kind: OpKind) -> _Kind:
        op = self._op(copy, kind)
        stage = self.problem.costs.stages[op.stage]
        made = 0
        if kind != STEP:
            made = sum(map(self._effects.own_bytes_of, self._effects.makes(op)))
        at = [(copy, kind)] if kind != BW else [(copy, B), (copy, W)]
        freed = sum(self._freed.get(each, 0) for each in at)
        freed += sum(self._freed_own.get(each, 0) for each in at if kind != BW)
        duration_us = stage.duration_us[kind]
        if kind == STEP:
            held = self.problem.stages_of(self.copy_ranks[copy])
            duration_us = self.problem.costs.step_us(op.stage, held)
        return _Kind(duration_us, self._effects.rise_bytes(op), made - freed)


def _precedes(one: tuple[int, OpKind], other: tuple[int, OpKind]) -> bool:
    """Return True if one reader of a value always runs before another one of the same rank.

    They are of one stage copy or of two neighbouring ones, whose B's run upwards.
    """
    (copy, kind), (other_copy, other_kind) = one, other
    if copy == other_copy or F in (kind, other_kind):
        return (kind.rank_in_chain, copy) < (other_kind.rank_in_chain, other_copy) and (
            copy == other_copy or kind == F
        )
    return kind == B and copy > other_copy
