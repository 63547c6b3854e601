"""Modulo scheduling (Rau 1994) of one micro-batch per interval, in coarse ticks.

    rank 0 | F0 .. B0 .. W0 |          one micro-batch's ops, t(op)
    rank 1 |    F0 B0 W0    |          the next one does the same T later, and so on:
           |<---- T ---->|             t(op) = q T + r; the r's of a rank must not overlap

The model has as many ops as stages, for any number of micro-batches. The memory of the steady state
follows from the q's and the order of the r's: right before op x runs for the K-th time, op y has
run K + q(x) − q(y) + [r(y) < r(x)] times, and since the deltas of F, B and W of a stage copy add up
to nothing, the usage is the sum over y of delta(y) · ([r(y) < r(x)] − q(y)). Warm-up and drain hold
fewer micro-batches and so less. Times are coarse because only the order counts, which is timed
exactly afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import Values, solve_briefly
from synth.solver.instance.instance import SPLIT, STEP, B, F, Instance, W
from synth.solver.tuning import STEADY_STATE


class Item(NamedTuple):
    """An op of the pattern."""

    copy: int
    kind: OpKind


@dataclass(frozen=True)
class Pattern:
    """Starts of the ops of the first micro-batch, in ticks; the next follows an interval later."""

    starts: dict[Item, int]
    interval: int

    def orders(self, instance: Instance) -> list[list[tuple[int, OpKind]]]:
        """Unroll to the orders of (copy, kind) of all micro-batches, by rank."""
        timed: list[list[tuple[int, int, int, int, OpKind]]] = [[] for _ in instance.headroom_bytes]
        for at, copy, kind, k in self.moments(instance):
            # Ops of no duration: F, B, W, and later stages' B's before those of earlier stages.
            depth = copy if kind == F else -copy
            timed[instance[copy].rank].append((at, kind.rank_in_chain, k, depth, kind))
        return [[(abs(depth), kind) for *_, depth, kind in sorted(ops)] for ops in timed]

    def moments(self, instance: Instance) -> Iterator[tuple[int, int, OpKind, int]]:
        """Yield the tick, stage copy, kind and number of every op."""
        for (copy, kind), at in self.starts.items():
            for k in range(instance[copy].num_micro_batches):
                yield at + k * self.interval, copy, kind, k


class SteadyStateModel:
    """The starts of one micro-batch's ops, as whole intervals and the rest, rank by rank.

    Attributes:
        tick_us: the duration of a tick.
        interval: in ticks.
        cap: the limit for all ranks that is minimised, in bytes, if static bytes are given.
        start: by op, in ticks.
    """

    def __init__(
        self,
        instance: Instance,
        interval_share: float,
        ticks: int,
        static_bytes: Sequence[int] | None = None,
    ) -> None:
        """Build the model.

        Args:
            instance: gives times, memory and the caps; no caps if static bytes are given.
            interval_share: the interval, as a multiple of the largest work of a rank.
            ticks: the ticks of the largest work of a rank for one micro-batch.
            static_bytes: by rank, to minimise the limit (`least`); None: the caps stand.
        """
        self.instance, self.static_bytes = instance, static_bytes
        work_us = max(sum(instance[c].work_us for c in held) for held in instance.held)
        self.tick_us = max(1.0, work_us / ticks)
        works = [
            sum(self._ticks(c, kind) for c in held for kind in SPLIT) for held in instance.held
        ]
        self.interval = max(1, round(max(works) * interval_share))
        self.cp = cp_model.CpModel()
        self.cap = self.cp.new_int_var(0, self._most_bytes(), "cap")
        trips = [self._trip(index) for index in range(len(instance))]
        self.latest = 2 * max(trips) + 6 * self.interval
        self.start = {
            Item(index, kind): self.cp.new_int_var(0, self.latest, "")
            for index in range(len(instance))
            for kind in SPLIT
        }
        for held in instance.held:
            self._add_rank([Item(copy, kind) for copy in held for kind in SPLIT])
        self._add_precedences()

    def _ticks(self, copy: int, kind: OpKind) -> int:
        duration = self.instance[copy].duration_us[kind]
        return max(1, round(duration / self.tick_us)) if duration else 0

    def _lag(self, time_us: int) -> int:
        """Round a transfer to the nearest tick: rounding up at each step fills a tight memory.

        Where memory is minimised it is rounded up: without lags that takes much longer.
        """
        if self.static_bytes is not None:
            return math.ceil(time_us / self.tick_us)
        return round(time_us / self.tick_us)

    def _trip(self, index: int) -> int:
        copy = self.instance[index]
        trip_us = (
            self.instance.head_us[index] + copy.duration_us[F] + self.instance.round_trip_us[index]
        )
        return round(trip_us / self.tick_us) + 4 * len(self.instance)

    def _add_rank(self, items: list[Item]) -> None:
        """Let ops of a rank repeat without overlap; intervals begin at the start of the first F."""
        cp, origin = self.cp, self.start[items[0]]
        whole: dict[Item, cp_model.LinearExprT] = {items[0]: 0}
        rest: dict[Item, cp_model.LinearExprT] = {items[0]: 0}
        most = self.latest // self.interval + 1
        for item in items[1:]:
            q, r = cp.new_int_var(-most, most, ""), cp.new_int_var(0, self.interval - 1, "")
            cp.add(r + self._ticks(item.copy, item.kind) <= self.interval)
            cp.add(self.start[item] - origin == q * self.interval + r)
            whole[item], rest[item] = q, r
        cp.add_no_overlap(
            cp.new_fixed_size_interval_var(rest[item], self._ticks(item.copy, item.kind), "")
            for item in items
        )
        rank = self.instance[items[0].copy].rank
        headroom: cp_model.LinearExprT | None = self.instance.headroom_bytes[rank]
        if self.static_bytes is not None:
            headroom = self.cap - self.static_bytes[rank]
        if headroom is not None:
            self._add_memory(items, whole, rest, headroom)

    def _add_memory(
        self,
        items: list[Item],
        whole: dict[Item, cp_model.LinearExprT],
        rest: dict[Item, cp_model.LinearExprT],
        headroom: cp_model.LinearExprT,
    ) -> None:
        cp = self.cp
        before: dict[tuple[Item, Item], cp_model.LinearExprT] = {}
        for a, b in combinations(items, 2):
            if a == items[0]:
                before[a, b], before[b, a] = 1, 0
                continue
            literal = cp.new_bool_var("")
            before[a, b], before[b, a] = literal, 1 - literal
            cp.add(rest[b] >= rest[a] + self._ticks(a.copy, a.kind)).only_enforce_if(literal)
            cp.add(rest[a] >= rest[b] + self._ticks(b.copy, b.kind)).only_enforce_if(~literal)
        deltas = {x: self.instance[x.copy].delta_bytes[x.kind] for x in items}
        held = cp_model.LinearExpr.sum([-deltas[y] * whole[y] for y in items])
        for x in items:
            done = cp_model.LinearExpr.sum([deltas[y] * before[y, x] for y in items if y != x])
            peak_above = self.instance[x.copy].peak_above_bytes[x.kind]
            cp.add(held + done + peak_above <= headroom)

    def _add_precedences(self) -> None:
        """Put F, B and W of a copy in order, and let transfers arrive before their readers."""
        for index, copy in enumerate(self.instance.copies):
            self._precede(Item(index, F), Item(index, B), 0)
            self._precede(Item(index, B), Item(index, W), 0)
            if copy.below is not None:
                self._precede(Item(index, F), Item(copy.below, F), self._lag(copy.down_us))
                self._precede(Item(copy.below, B), Item(index, B), self._lag(copy.up_us))

    def _precede(self, first: Item, second: Item, lag: int) -> None:
        end = self.start[first] + self._ticks(first.copy, first.kind)
        self.cp.add(self.start[second] >= end + lag)

    def _most_bytes(self) -> int:
        """Return more than any pattern needs, with as many micro-batches as can be in flight."""
        if self.static_bytes is None:
            return 0
        each = sum(abs(bytes_) for c in self.instance.copies for bytes_ in c.delta_bytes.values())
        peaks_above = sum(max(copy.peak_above_bytes.values()) for copy in self.instance.copies)
        return max(self.static_bytes) + 8 * len(self.instance) * each + peaks_above

    def least(
        self, seconds: float, seed: int, workers: int, should_stop: Callable[[], bool]
    ) -> Values | None:
        """Minimise the cap, which STEPs must keep, too."""
        if self.static_bytes is None:
            raise ValueError("a limit is minimised only for given static bytes")
        for rank, held in enumerate(self.instance.held):
            for copy in held:
                steps = self.instance[copy].peak_above_bytes[STEP]
                self.cp.add(self.cap >= self.static_bytes[rank] + steps)
        self.cp.minimize(self.cap)
        return solve_briefly(self.cp, seconds, seed, workers, should_stop)

    def _minimise(self) -> None:
        """Minimise the time of a micro-batch on all ranks, which warm-up and drain add."""
        span = self.cp.new_int_var(0, self.latest + self.interval, "span")
        for item, start in self.start.items():
            self.cp.add(span >= start + self._ticks(item.copy, item.kind))
        self.cp.minimize(span)

    def solve(
        self, seconds: float, seed: int, workers: int, should_stop: Callable[[], bool]
    ) -> Pattern | None:
        """Return the best pattern found within a deterministic limit; None if there is none."""
        self._minimise()
        found = solve_briefly(self.cp, seconds, seed, workers, should_stop)
        if found is None:
            return None
        starts = {item: found.value(start) for item, start in self.start.items()}
        return Pattern(starts, self.interval)


def find(
    instance: Instance,
    interval_share: float,
    seconds: float,
    *,
    ticks: int = STEADY_STATE.ticks,
    seed: int = 0,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> Pattern | None:
    """Find a pattern that keeps the caps, with the shortest way through the pipeline.

    Args:
        interval_share: the interval, as a multiple of the largest work of a rank: 1 has no bubble.
        seconds: CP-SAT's deterministic seconds.
        ticks: of the largest work of a rank for one micro-batch.
    """
    model = SteadyStateModel(instance, interval_share, ticks)
    return model.solve(seconds, seed, workers, should_stop)


class LeastMemory(NamedTuple):
    """A limit for all ranks under which a pattern without bubble was found, and its bound.

    No pattern of one micro-batch in these ticks needs less than `not_below_bytes`. `is_exact` is
    True if the ticks are exact times, not rounded ones.
    """

    cap_bytes: int
    not_below_bytes: int
    is_exact: bool
    ticks: int


def least_memory(
    instance: Instance,
    static_bytes: Sequence[int],
    seconds: float,
    seed: int = 0,
    workers: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> LeastMemory | None:
    """Minimise the limit with which some pattern keeps the busiest rank always busy.

    Args:
        instance: without caps.
        static_bytes: by rank.
        seconds: CP-SAT's deterministic seconds.
        should_stop: polled while solving; then the least limit so far is returned.
    """
    ticks, is_exact = _exact_ticks(instance)
    model = SteadyStateModel(instance, 1.0, ticks, static_bytes)
    found = model.least(seconds, seed, workers, should_stop)
    if found is None:
        return None
    proven = -int(-found.bound // 1)
    return LeastMemory(found.value(model.cap), proven, is_exact, ticks)


def _exact_ticks(instance: Instance) -> tuple[int, bool]:
    """Return the ticks of the largest work, and True if all times are whole multiples of a tick."""
    times = [copy.duration_us[kind] for copy in instance.copies for kind in SPLIT]
    times += [lag for copy in instance.copies for lag in (copy.down_us, copy.up_us)]
    unit = gcd(*times)
    work_us = max(sum(instance[c].work_us for c in held) for held in instance.held)
    if unit and work_us // unit <= STEADY_STATE.most_exact_ticks:
        return work_us // unit, True
    return STEADY_STATE.ticks, False
