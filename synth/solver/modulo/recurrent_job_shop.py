"""The recurrent job-shop: one micro-batch per initiation interval, on ranks with any stages.

    rank 0 | F0 .. B0 .. W0 |          one micro-batch's ops, at t(op)
    rank 1 |    F0 B0 W0    |          the next one does the same T later, and so on

Each pair of ops a, b of a rank has an integer height h(a, b) with h(b, a) = 1 − h(a, b) and

    t(b) + T h(a, b) ≥ t(a) + duration(a)

(Hanen 1994, European Journal of Operational Research 72). The heights are the order, and the
iteration distances between ops of a rank. Right before the K-th run of x, op y has run K + h(x, y)
times, so memory is a linear function of them: the deltas of all ops that have run, and what else
the ranks hold. It does not depend on the number of micro-batches; warm-up and drain hold less.

A link serves transfers in the order in which its rank makes them. So if a link has several in each
micro-batch, they have start times too, and the heights of the ops that make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import NamedTuple, Protocol

from synth.op_kinds import OpKind
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import BW, SPLIT, STEP, B, F, Instance, Node, OpIndex, W
from synth.solver.modulo.cyclic_ops import CyclicOps, CyclicSchedule, Expression


class CyclicOp(NamedTuple):
    """An op of the micro-batch that repeats."""

    copy: int
    kind: OpKind


class Held(Protocol):
    """Bytes that a rank holds besides the deltas of its ops."""

    def at_most(self, held: tuple[int, ...], x: CyclicOp) -> list[Expression]:
        """Return bytes before a run of x, one of which is the most of all its runs."""

    def after_update(self, held: tuple[int, ...], w: CyclicOp) -> Expression:
        """Return the bytes right after an update, which directly follows a run of W."""


class CyclicTransfer(NamedTuple):
    """A transfer of each micro-batch on a link, from the op that makes the value to its reader."""

    maker: CyclicOp
    reader: CyclicOp
    lag: int


class RecurrentJobShop:
    """The model at one interval, without the constraints of links and memory.

    Attributes:
        ops: the start variables.
        height: by pair of a rank's ops.
        most: the largest absolute value of a height.
    """

    def __init__(
        self,
        instance: Instance,
        interval: int,
        latest: int,
        *,
        update: tuple[int, ...] = (),
        is_fusible: bool = False,
    ) -> None:
        """Build the model; for the arguments see `CyclicOps`."""
        self.cp = cp_model.CpModel()
        self.instance, self.interval, self.latest = instance, interval, latest
        self.most = latest // interval + 2
        self.ops = CyclicOps(
            self.cp, instance, interval, latest, update=update, is_fusible=is_fusible
        )
        self.height: dict[tuple[CyclicOp, CyclicOp], Expression] = {}
        for held in instance.held:
            self._add_rank(_ops_of(held))
        self._add_precedences()

    def _add_rank(self, ops: list[CyclicOp]) -> None:
        """Let the ops of a rank repeat without overlap."""
        for one, other in combinations(ops, 2):
            height = self.cp.new_int_var(-self.most, self.most, "")
            self.height[one, other], self.height[other, one] = height, 1 - height
            for a, b in ((one, other), (other, one)):
                start, end = self.ops.at(_node(b)), self.ops.end(_node(a))
                self.cp.add(start + self.interval * self.height[a, b] >= end)

    def _add_precedences(self) -> None:
        """Put F, B and W of a copy in order, and let transfers arrive before their readers."""
        precede = self.ops.precede
        for index, copy in enumerate(self.instance.copies):
            f, b, w = (CyclicOp(index, kind) for kind in SPLIT)
            precede(_node(f), _node(b), self.instance.round_trip_us[index])
            precede(_node(b), _node(w))
            self.cp.add(self.height[f, b] <= 0)
            self.cp.add(self.height[b, w] <= 0)
            if index in self.ops.fused:
                fused = self.ops.fused[index]
                is_next = self.ops.at(_node(w)) == self.ops.end(_node(b))
                self.cp.add(is_next).only_enforce_if(fused)
                self.cp.add(self.height[b, w] == 0).only_enforce_if(fused)
            if copy.below is not None:
                precede(_node(f), (copy.below, OpIndex(F, 0)), copy.down_us)
                precede((copy.below, OpIndex(B, 0)), _node(b), copy.up_us)

    def add_links(self) -> None:
        """Let each link serve its transfers one at a time, in the order of their makers."""
        for transfers in shared_links(self.instance):
            begin = {one: self.cp.new_int_var(0, self.latest, "") for one in transfers}
            for one, at in begin.items():
                self.cp.add(at >= self.ops.end(_node(one.maker)))
                self.cp.add(self.ops.at(_node(one.reader)) >= at + one.lag)
            for one, other in permutations(transfers, 2):
                height = self.height[one.maker, other.maker]
                self.cp.add(begin[other] + self.interval * height >= begin[one] + one.lag)

    def run(self, y: CyclicOp, x: CyclicOp) -> Expression:
        """Return the runs of y before a run of x, less those of x."""
        return 0 if x == y else self.height[x, y]

    def add_memory(
        self, held: tuple[int, ...], headroom: Expression, other: Held | None = None
    ) -> None:
        """Keep the limit of a rank while any of its ops runs, and with `other` after updates."""
        ops = _ops_of(held)
        delta = {op: self.instance[op.copy].delta_bytes[op.kind] for op in ops}
        for x in ops:
            kept = cp_model.LinearExpr.sum([delta[y] * self.run(y, x) for y in ops])
            beside = [0] if other is None else other.at_most(held, x)
            peak_above = self.instance[x.copy].peak_above_bytes
            fused = None if x.kind == F else self.ops.fused.get(x.copy)
            split = True if fused is None else ~fused
            self._keep(kept + peak_above[x.kind], beside, headroom, split)
            if x.kind == B and fused is not None:
                self._keep(kept + peak_above[BW], beside, headroom, fused)
            if x.kind == W and other is not None:
                updating = kept + delta[x] + peak_above[STEP]
                self._keep(updating, [other.after_update(held, x)], headroom, only=True)

    def _keep(
        self,
        level: Expression,
        beside: Sequence[Expression],
        most: Expression,
        only: cp_model.LiteralT,
    ) -> None:
        for num_bytes in beside:
            self.cp.add(level + num_bytes <= most).only_enforce_if(only)

    def begin_soon(self, schedule: CyclicSchedule) -> None:
        """Minimise the sum of all starts: little memory, a short prologue and epilogue.

        Args:
            schedule: to begin the search from.
        """
        self.cp.minimize(cp_model.LinearExpr.sum(list(self.ops.start.values())))
        for node, at in schedule.starts.items():
            self.cp.add_hint(self.ops.start[node], at)


def latest_start(instance: Instance, interval: int, more_idle: int = 0) -> int:
    """Return an upper bound on all starts of at least one feasible order, if there is any.

    Where a value waits for an interval or more, all ops after it could run a whole interval sooner,
    and less memory is held. A transfer waits less than an interval for its link.

    Args:
        instance: its times are in the unit of the interval.
        more_idle: further intervals for which ops may gain by waiting.
    """
    idle = 2 * len(instance) + 6 + sum(map(len, shared_links(instance))) + more_idle
    ways = [
        instance.head_us[i] + copy.work_us + copy.duration_us[BW] + instance.round_trip_us[i]
        for i, copy in enumerate(instance.copies)
    ]
    return max(ways) + idle * interval


def shared_links(instance: Instance) -> list[list[CyclicTransfer]]:
    """Return the transfers of each directed link that has several in a micro-batch."""
    found: dict[tuple[int, int], list[CyclicTransfer]] = {}
    for one in _transfers(instance):
        ends = instance[one.maker.copy].rank, instance[one.reader.copy].rank
        if ends[0] != ends[1]:
            found.setdefault(ends, []).append(one)
    return [transfers for transfers in found.values() if len(transfers) > 1]


def _transfers(instance: Instance) -> Iterator[CyclicTransfer]:
    for index, copy in enumerate(instance.copies):
        if copy.below is not None:
            yield CyclicTransfer(CyclicOp(index, F), CyclicOp(copy.below, F), copy.down_us)
            yield CyclicTransfer(CyclicOp(copy.below, B), CyclicOp(index, B), copy.up_us)


def _ops_of(held: tuple[int, ...]) -> list[CyclicOp]:
    return [CyclicOp(index, kind) for index in held for kind in SPLIT]


def _node(op: CyclicOp) -> Node:
    return op.copy, OpIndex(op.kind, 0)
