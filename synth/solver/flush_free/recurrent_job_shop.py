"""Modulo scheduling of one micro-batch per interval, with versions of the weights.

The model with a flush is `solver/modulo/modulo_model.py`.

    rank 0 | F0 .. B0 .. W0 |          one micro-batch's ops, at t(op)
    rank 1 |    F0 B0 W0    |          the next one does the same T later, and so on

This is the recurrent job-shop (Hanen 1994, European Journal of Operational Research 72): each pair
of ops a, b of a rank has an integer height h(a, b) with h(b, a) = 1 − h(a, b) and

    t(b) + T h(a, b) ≥ t(a) + duration(a)

The heights are the order. Right before the K-th run of x, op y has run K + h(x, y) times, so memory
is a linear function of them: the deltas of all ops that have run, and the stashed versions
(`stashed_versions`). The weights that F reads are late by −h(F, W) micro-batches: with 2BW by k at
most, with vertical sync by no more than those of the first stage.

An update takes its time once in k micro-batches, the model STEP / k in each. No order that repeats
every micro-batch takes less: the mean start times of k micro-batches in a row satisfy the model.

A link serves transfers in the order in which its rank makes them. So if a link has several in each
micro-batch, they have start times too, and the heights of the ops that make them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import combinations, permutations
from typing import NamedTuple, TypeAlias

from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import SmallSolution, Values, decide_by_relaxation
from synth.solver.flush_free.cyclic_order import CyclicOp, CyclicOrder
from synth.solver.flush_free.flush_free_problem import Consistency, FlushFreeProblem
from synth.solver.flush_free.stashed_versions import LinearExpression, StashedVersions
from synth.solver.instance.instance import BW, SPLIT, STEP, B, F, Instance, W

Literal: TypeAlias = "cp_model.LiteralT"


class _Transfer(NamedTuple):
    """A transfer of each micro-batch on a link, from the op that makes the value to its reader."""

    maker: CyclicOp
    reader: CyclicOp
    us: int


class FlushFreeModel:
    """The model at one interval.

    Attributes:
        interval: in ticks.
        start: by op, in ticks.
        height: by pair of a rank's ops.
    """

    def __init__(
        self,
        flush_free: FlushFreeProblem,
        instance: Instance,
        interval: int,
        ticks_per_us: int,
        *,
        is_relaxed: bool,
    ) -> None:
        """Build the model.

        Args:
            flush_free: the rule of versions, and the bytes of the parameters.
            instance: the problem's instance, under a memory model.
            interval: in ticks.
            ticks_per_us: all times are whole numbers of ticks.
            is_relaxed: round down what is no whole number, so that a refutation is a proof.
        """
        self.flush_free, self.instance, self.interval = flush_free, instance, interval
        self._ticks_per_us, self._is_relaxed = ticks_per_us, is_relaxed
        self.cp = cp_model.CpModel()
        self.latest = self._latest()
        self.most = self.latest // interval + 2
        ops = [CyclicOp(index, kind) for index in self._copies for kind in SPLIT]
        self.start = {op: self.cp.new_int_var(0, self.latest, "") for op in ops}
        self.cp.add(self.start[ops[0]] == 0)
        self.fused = {
            i: self.cp.new_bool_var("") for i in self._copies if instance[i].gains_by_fusion
        }
        self.height: dict[tuple[CyclicOp, CyclicOp], LinearExpression] = {}
        for held in instance.held:
            self._add_rank([CyclicOp(index, kind) for index in held for kind in SPLIT])
        self._add_precedences()
        self._add_links()
        self._add_delays()
        for rank, headroom in enumerate(instance.headroom_bytes):
            if headroom is not None:
                self._add_memory(instance.held[rank], headroom)

    def _latest(self) -> int:
        """An upper bound on all start times of at least one feasible order, if there is any.

        Where a value waits for an interval or more, all ops after it could run a whole interval
        sooner, and less memory is held. A transfer waits less than an interval for its link. Only
        W's may gain by waiting: those of the first stage with vertical sync, so that no stage is
        later; and with 2BW, where W's that are late by an update save the second version. Stages
        that hold theirs in turn may gain by any wait; but no F of 2BW comes k + 1 intervals or more
        before its W, and all F's and B's come between F and W of the first stage.
        """
        instance, idle = self.instance, 2 * len(self.instance) + 6
        idle += sum(map(len, self._links.values()))
        is_limited = any(headroom is not None for headroom in instance.headroom_bytes)
        if self.flush_free.consistency == Consistency.TWO_VERSIONS and is_limited:
            if instance.holds_several:
                return 2 * (self.flush_free.every + 1) * self.interval
            idle += self.flush_free.every
        ways_us = [
            instance.head_us[i] + copy.work_us + copy.duration_us[BW] + instance.round_trip_us[i]
            for i, copy in enumerate(instance.copies)
        ]
        return self._ticks(max(ways_us)) + idle * self.interval

    @property
    def _copies(self) -> range:
        return range(len(self.instance))

    def _ticks(self, time_us: int) -> int:
        return time_us * self._ticks_per_us

    def _step_ticks(self, index: int) -> int:
        """The share of a micro-batch in its stage's update."""
        total = self._ticks(self.instance[index].duration_us[STEP])
        return (
            total // self.flush_free.every
            if self._is_relaxed
            else -(-total // self.flush_free.every)
        )

    def _duration(self, op: CyclicOp) -> LinearExpression:
        """The ticks of an op, with the update after W; a fused B takes all of BW."""
        times = self.instance[op.copy].duration_us
        split, fused = {
            F: (times[F], times[F]),
            B: (times[B], times[BW]),
            W: (times[W], 0),
        }[op.kind]
        step = self._step_ticks(op.copy) if op.kind == W else 0
        literal = self.fused.get(op.copy)
        if literal is None:
            return self._ticks(split) + step
        return self._ticks(split) + step + self._ticks(fused - split) * literal

    # Times

    def _add_rank(self, ops: list[CyclicOp]) -> None:
        """Let the ops of a rank repeat without overlap."""
        for one, other in combinations(ops, 2):
            height = self.cp.new_int_var(-self.most, self.most, "")
            self.height[one, other], self.height[other, one] = height, 1 - height
            for a, b in ((one, other), (other, one)):
                self.cp.add(
                    self.start[b] + self.interval * self.height[a, b]
                    >= self.start[a] + self._duration(a)
                )

    def _add_precedences(self) -> None:
        """Put F, B and W of a copy in order, and let transfers arrive before their readers."""
        for index, copy in enumerate(self.instance.copies):
            f, b, w = (CyclicOp(index, kind) for kind in SPLIT)
            self._precede(f, b, self.instance.round_trip_us[index])
            self._precede(b, w, 0)
            self.cp.add(self.height[f, b] <= 0)
            self.cp.add(self.height[b, w] <= 0)
            if index in self.fused:
                end = self.start[b] + self._duration(b)
                self.cp.add(self.start[w] == end).only_enforce_if(self.fused[index])
                self.cp.add(self.height[b, w] == 0).only_enforce_if(self.fused[index])
            if copy.below is not None:
                self._precede(f, CyclicOp(copy.below, F), copy.down_us)
                self._precede(CyclicOp(copy.below, B), b, copy.up_us)

    @cached_property
    def _links(self) -> dict[tuple[int, int], list[_Transfer]]:
        """The transfers of each directed link that has several in a micro-batch."""
        found: dict[tuple[int, int], list[_Transfer]] = {}
        for one in self._transfers():
            ends = self.instance[one.maker.copy].rank, self.instance[one.reader.copy].rank
            if ends[0] != ends[1]:
                found.setdefault(ends, []).append(one)
        return {ends: transfers for ends, transfers in found.items() if len(transfers) > 1}

    def _transfers(self) -> Iterator[_Transfer]:
        for index, copy in enumerate(self.instance.copies):
            if copy.below is not None:
                f, b = CyclicOp(index, F), CyclicOp(index, B)
                below_f, below_b = CyclicOp(copy.below, F), CyclicOp(copy.below, B)
                yield _Transfer(f, below_f, copy.down_us)
                yield _Transfer(below_b, b, copy.up_us)

    def _add_links(self) -> None:
        """Let each link serve its transfers one at a time, in the order of their makers."""
        for transfers in self._links.values():
            begin = {one: self.cp.new_int_var(0, self.latest, "") for one in transfers}
            for one, at in begin.items():
                self.cp.add(at >= self.start[one.maker] + self._duration(one.maker))
                self.cp.add(self.start[one.reader] >= at + self._ticks(one.us))
            for one, other in permutations(transfers, 2):
                height = self.height[one.maker, other.maker]
                end = begin[one] + self._ticks(one.us)
                self.cp.add(begin[other] + self.interval * height >= end)

    def _precede(self, first: CyclicOp, second: CyclicOp, lag_us: int) -> None:
        end = self.start[first] + self._duration(first)
        self.cp.add(self.start[second] >= end + self._ticks(lag_us))

    # Versions

    def _run(self, y: CyclicOp, x: CyclicOp) -> LinearExpression:
        """The runs of y before a run of x, less those of x."""
        return 0 if x == y else self.height[x, y]

    def _late(self, index: int) -> LinearExpression:
        """The micro-batches without an update when F of a copy runs."""
        return -self._run(CyclicOp(index, W), CyclicOp(index, F))

    def _add_delays(self) -> None:
        """Let every version be there when it is read."""
        first = self.instance.index[0, 0]
        for index in self._copies:
            if self.flush_free.consistency == Consistency.VERTICAL:
                self.cp.add(self._late(index) <= self._late(first))
            elif self.flush_free.consistency == Consistency.TWO_VERSIONS:
                self.cp.add(self._late(index) <= self.flush_free.every)

    # Memory

    def _add_memory(self, held: tuple[int, ...], headroom: int) -> None:
        """Keep the limit of a rank while any of its ops runs, and after it."""
        ops = [CyclicOp(index, kind) for index in held for kind in SPLIT]
        delta = {op: self.instance[op.copy].delta_bytes[op.kind] for op in ops}
        versions = StashedVersions(self.cp, self.flush_free, self.instance, self._run, self.most)
        for x in ops:
            kept = cp_model.LinearExpr.sum([delta[y] * self._run(y, x) for y in ops])
            stashes = versions.at_most(held, x)
            peak_above = self.instance[x.copy].peak_above_bytes
            fused = None if x.kind == F else self.fused.get(x.copy)
            split = True if fused is None else ~fused
            self._keep(kept + peak_above[x.kind], stashes, headroom, split)
            if x.kind == B and fused is not None:
                self._keep(kept + peak_above[BW], stashes, headroom, fused)
            if x.kind == W:
                updating = kept + delta[x] + peak_above[STEP]
                self._keep(updating, [versions.after_update(held, x)], headroom, only=True)

    def _keep(
        self, level: LinearExpression, stashes: list[LinearExpression], most: int, only: Literal
    ) -> None:
        for stash in stashes:
            self.cp.add(level + stash <= most).only_enforce_if(only)

    # Solving

    def begin_soon(self, order: CyclicOrder) -> None:
        """Ask for the least sum of all starts: little memory, a short prologue and epilogue.

        Args:
            order: to begin the search from.
        """
        self.cp.minimize(cp_model.LinearExpr.sum(list(self.start.values())))
        for op, at in order.starts.items():
            self.cp.add_hint(self.start[op], at)

    def decide(self, seconds: float, seed: int, should_stop: Callable[[], bool]) -> SmallSolution:
        """Find an order or refute the interval, within CP-SAT's deterministic seconds."""
        return decide_by_relaxation(self.cp, seconds, seed, should_stop)

    def read(self, values: Values) -> CyclicOrder:
        """The order of a solution."""
        starts = {op: values.value(start) for op, start in self.start.items()}
        fused = frozenset(i for i, literal in self.fused.items() if values.value(literal))
        return CyclicOrder(starts, fused, self.interval)
