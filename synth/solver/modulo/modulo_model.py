"""Modulo scheduling of several micro-batches per interval, in exact times, at a fixed interval T.

    rank 0 | F0 F1 .. B0 W0 B1 W1 |        two micro-batches per interval, `start`
    rank 1 |    F0 F1 B0 B1 W0 W1 |        the next two do the same T later, and so on:
           |<--------- T -------->|        ops that are T apart are one op of the model

With T fixed the model only asks for feasibility: ops of a rank must not overlap on a circle of
circumference T, and every precedence, memory's too, is a difference of two starts and whole
intervals. It is for ranks that hold one stage copy, where memory is precedences (`precedences`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from synth.op_kinds import OpKind
from synth.solver.cpsat.memory.precedences import (
    Alternative,
    Before,
    Requirement,
    asked_by_all,
    requirement,
)
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.run import decide
from synth.solver.instance.instance import SPLIT, B, F, Instance, OpIndex, StageCopy, W
from synth.solver.instance.timing import Orders


@dataclass(frozen=True)
class ModuloSchedule:
    """Starts of the ops of the first `size` micro-batches; the next follow an interval later."""

    starts: dict[tuple[int, OpIndex], int]
    size: int
    interval_us: int

    @property
    def rate_us(self) -> float:
        """The time per micro-batch in the steady state."""
        return self.interval_us / self.size

    def orders(self, instance: Instance, first: int = 0) -> Orders:
        """Unroll to the orders of (copy, kind) of all micro-batches, by rank.

        Where ops take no time, their order may not be the one that keeps the caps.

        Args:
            instance: gives the numbers of micro-batches.
            first: the micro-batch of the interval with which the schedule begins.
        """
        ordered = []
        for (index,) in instance.held:
            ops = []
            for k in range(instance[index].num_micro_batches):
                intervals, microbatch = divmod(k + first, self.size)
                for kind in SPLIT:
                    at = (
                        self.starts[index, OpIndex(kind, microbatch)] + intervals * self.interval_us
                    )
                    ops.append((at, kind.rank_in_chain, k, kind))
            ordered.append(tuple((index, kind) for *_, kind in sorted(ops)))
        return tuple(ordered)


def num_ops(instance: Instance, size: int) -> int:
    """Return the ops of an interval on all ranks."""
    return size * len(instance) * len(SPLIT)


class ModuloModel:
    """The starts of one interval's ops; those of other intervals are whole intervals apart."""

    def __init__(self, instance: Instance, size: int, interval_us: int) -> None:
        """Model intervals of `size` micro-batches, on ranks that hold one stage copy."""
        self.instance, self.size, self.interval_us = instance, size, interval_us
        self.cp = cp_model.CpModel()
        trip_us = max(instance.head_us) + max(instance.round_trip_us)
        self.latest_us = 2 * trip_us + 4 * interval_us
        self.start = {
            (index, op_index): self.cp.new_int_var(0, self.latest_us, "")
            for index in range(len(instance))
            for op_index in self._op_indices
        }
        self.cp.add(self.start[0, OpIndex(F, 0)] == 0)
        for index in range(len(instance)):
            self._add_circle(index)
            self._add_order(index)
            self._add_memory(index)
        self._add_transfers()

    @cached_property
    def _op_indices(self) -> list[OpIndex]:
        return [OpIndex(kind, microbatch) for kind in SPLIT for microbatch in range(self.size)]

    def _at(self, index: int, op_index: OpIndex) -> cp_model.LinearExprT:
        """Return the start of any micro-batch's op, in this interval or another one."""
        intervals, microbatch = divmod(op_index.microbatch, self.size)
        return self.start[index, OpIndex(op_index.kind, microbatch)] + intervals * self.interval_us

    def _add_circle(self, index: int) -> None:
        """Let starts modulo the interval, and the same an interval later, not overlap."""
        cp, intervals = self.cp, []
        for op_index in self._op_indices:
            duration_us = self.instance[index].duration_us[op_index.kind]
            whole = cp.new_int_var(0, self.latest_us // self.interval_us + 1, "")
            rest = cp.new_int_var(0, self.interval_us - 1, "")
            cp.add(self.start[index, op_index] == whole * self.interval_us + rest)
            for at in (rest, rest + self.interval_us):
                intervals.append(cp.new_fixed_size_interval_var(at, duration_us, ""))
        cp.add_no_overlap(intervals)

    def _add_order(self, index: int) -> None:
        """Put F, B and W of a micro-batch in order, and the micro-batches of each kind."""
        for microbatch in range(self.size):
            self._precede(index, Before(OpIndex(F, microbatch), OpIndex(B, microbatch)))
            self._precede(index, Before(OpIndex(B, microbatch), OpIndex(W, microbatch)))
            for kind in SPLIT:
                self._precede(
                    index, Before(OpIndex(kind, microbatch), OpIndex(kind, microbatch + 1))
                )

    def _precede(self, index: int, before: Before) -> cp_model.Constraint:
        first, second = before
        end = self._at(index, first) + self.instance[index].duration_us[first.kind]
        return self.cp.add(self._at(index, second) >= end)

    def _add_memory(self, index: int) -> None:
        """Require of every op of the interval what memory requires of an op in the steady state."""
        copy = self.instance[index]
        for middle, alternatives in _steady_requirements(copy, self.instance.headroom_of(index)):
            for microbatch in range(self.size):
                self._require(
                    index, [_moved(a, microbatch - middle.microbatch) for a in alternatives]
                )

    def _require(self, index: int, alternatives: list[Alternative]) -> None:
        choices = [self.cp.new_bool_var("") for _ in alternatives]
        self.cp.add_bool_or(choices)
        for choice, alternative in zip(choices, alternatives, strict=True):
            for before in alternative:
                self._precede(index, before).only_enforce_if(choice)
        for before in asked_by_all(alternatives) if alternatives else ():
            self._precede(index, before)

    def _add_transfers(self) -> None:
        """Let activations and gradients arrive before the ops that read them."""
        for index, copy in enumerate(self.instance.copies):
            if copy.below is not None:
                self._add_link((index, F), (copy.below, F), copy.down_us)
                self._add_link((copy.below, B), (index, B), copy.up_us)

    def _add_link(
        self, source: tuple[int, OpKind], target: tuple[int, OpKind], lag_us: int
    ) -> None:
        """Let transfers of a link run one at a time, unless ops take longer than transfers."""
        duration_us = self.instance[source[0]].duration_us[source[1]]
        arrivals: list[cp_model.IntVar] = []
        for microbatch in range(self.size):
            end = self.start[source[0], OpIndex(source[1], microbatch)] + duration_us
            reader = self.start[target[0], OpIndex(target[1], microbatch)]
            if lag_us <= duration_us:
                self.cp.add(reader >= end + lag_us)
                continue
            arrivals.append(self.cp.new_int_var(0, 2 * self.latest_us, ""))
            self.cp.add(arrivals[-1] >= end + lag_us)
            self.cp.add(reader >= arrivals[-1])
        for earlier, later in pairwise(arrivals):
            self.cp.add(later >= earlier + lag_us)
        if arrivals:
            self.cp.add(arrivals[0] + self.interval_us >= arrivals[-1] + lag_us)

    def solve(
        self,
        seconds: float,
        seed: int,
        should_stop: Callable[[], bool],
        *,
        is_thorough: bool = False,
    ) -> tuple[ModuloSchedule | None, float, bool]:
        """Return a schedule or None, the effort, and True if there is provably none (`decide`)."""
        found, spent_s, is_refuted = decide(
            self.cp, seconds, seed, should_stop, is_thorough=is_thorough
        )
        if found is None:
            return None, spent_s, is_refuted
        starts = {key: found.value(start) for key, start in self.start.items()}
        return ModuloSchedule(starts, self.size, self.interval_us), spent_s, False


def _steady_requirements(copy: StageCopy, headroom_bytes: int | None) -> Iterator[Requirement]:
    """Yield the requirements of each kind of op in the steady state.

    No more micro-batches are in flight than there are in all.
    """
    middle = copy.num_micro_batches
    endless = copy._replace(num_micro_batches=2 * middle + 1)
    if headroom_bytes is None:
        return
    for kind in SPLIT:
        asked = requirement(endless, headroom_bytes, OpIndex(kind, middle))
        if asked is not None:
            yield asked


def _moved(alternative: Alternative, by: int) -> Alternative:
    """Return an alternative for another micro-batch."""
    return tuple(
        Before(*(OpIndex(op_index.kind, op_index.microbatch + by) for op_index in before))
        for before in alternative
    )
