"""Modulo scheduling of several micro-batches per interval, in exact times, at a fixed interval T.

With the interval fixed the model only asks for feasibility: ops of a rank must not overlap on a
circle of circumference T, and every precedence, memory's too, is a difference of two starts and
whole intervals. It is for ranks that hold one stage copy, where memory is precedences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from synth.solver.instance.instance import SPLIT, B, F, Instance, OpIndex, W
from synth.solver.instance.stage_copy import StageCopy
from synth.solver.modulo.cyclic_ops import CyclicOps, CyclicSchedule


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
        self.ops = CyclicOps(self.cp, instance, interval_us, self.latest_us, size=size)
        for index in range(len(instance)):
            self._add_circle(index)
            self._add_order(index)
            self._add_memory(index)
        self._add_transfers()

    def _add_circle(self, index: int) -> None:
        """Let starts modulo the interval, and the same an interval later, not overlap."""
        cp, intervals = self.cp, []
        for (copy, op_index), start in self.ops.start.items():
            if copy != index:
                continue
            duration_us = self.instance[index].duration_us[op_index.kind]
            whole = cp.new_int_var(0, self.latest_us // self.interval_us + 1, "")
            rest = cp.new_int_var(0, self.interval_us - 1, "")
            cp.add(start == whole * self.interval_us + rest)
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
        return self.ops.precede((index, before.first), (index, before.second))

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
                transfer_us = copy.up_us + copy.lead_us
                self._add_link((copy.below, B), (index, B), transfer_us, copy.lead_us)

    def _add_link(
        self, source: tuple[int, OpKind], target: tuple[int, OpKind], lag_us: int, lead_us: int = 0
    ) -> None:
        """Let transfers of a link run one at a time, unless ops take longer than transfers.

        Args:
            lag_us: the time of a transfer.
            lead_us: the first part of the target, which does not wait for it.
        """
        arrivals: list[cp_model.IntVar] = []
        for microbatch in range(self.size):
            maker = source[0], OpIndex(source[1], microbatch)
            reader = target[0], OpIndex(target[1], microbatch)
            if lag_us <= self.instance[source[0]].duration_us[source[1]]:
                self.ops.precede(maker, reader, lag_us - lead_us)
                continue
            arrivals.append(self.cp.new_int_var(0, 2 * self.latest_us, ""))
            self.cp.add(arrivals[-1] >= self.ops.end(maker) + lag_us)
            self.cp.add(self.ops.at(reader) + lead_us >= arrivals[-1])
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
    ) -> tuple[CyclicSchedule | None, float, bool]:
        """Return a schedule or None, the effort, and True if there is provably none (`decide`)."""
        found, spent_s, is_refuted = decide(
            self.cp, seconds, seed, should_stop, is_thorough=is_thorough
        )
        return None if found is None else self.ops.read(found), spent_s, is_refuted


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
