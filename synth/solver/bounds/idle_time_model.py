"""The least idle time of a rank in its warm-up and its drain, from models of these alone.

    rank 0 | F F F F F .  .  .  . F B W F B B W ...... F B W B W  .  B W  .  .  B W |
           |<-- opening ------------->|                      |<-------- closing -->|

The time of a rank is its work plus its idle time. A full pipeline may hardly idle: where ranks hold
several stages, the price of memory is paid in the warm-up and the drain. Few micro-batches have ops
in a stretch at either end, and all others can be left out: without them there is more memory and
less to wait for. So the idle time of a stretch is found, or bounded, exactly for any number of
micro-batches, and stretches that do not overlap add up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from synth.objective import Objective
from synth.solver.cpsat.model import ExactModel
from synth.solver.cpsat.op_variables import OpVariables, add_starts
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.cpsat.parameters import search_from_below
from synth.solver.cpsat.spans import Minimised, ends_above
from synth.solver.instance.instance import SPLIT, F, Instance, Node, OpIndex, W
from synth.solver.tuning import EXACT_MODEL


class End(NamedTuple):
    """The warm-up (`is_opening`) or the drain of a rank."""

    rank: int
    is_opening: bool


class LeastIdle(NamedTuple):
    """A proven idle time of a rank, and the ranks of the model that proved it."""

    least_us: int
    ranks: tuple[int, ...] = ()


# For each end of a rank, its idle time by the length of the stretch in microseconds.
IdleTimes = dict[End, dict[int, LeastIdle]]


@dataclass(frozen=True)
class Stretch:
    """The first or the last `length_us` microseconds of a rank.

    Attributes:
        is_period: True for the rank's own time, from its first op to its last STEP, False for the
            time of the whole schedule.
    """

    rank: int
    length_us: int
    is_opening: bool
    is_period: bool

    def num_micro_batches(self, instance: Instance) -> int:
        """Estimate the micro-batches with ops in it; more cost time, fewer weaken the bound."""
        held = instance.held[self.rank]
        first, work_us = held[0], max(1, sum(instance[copy].work_us for copy in held))
        shortest_us = min(instance[copy].duration_us[W] for copy in held)
        if self.is_opening:
            each, shortest_us = instance[first].delta_bytes[F], instance[first].duration_us[F]
        else:
            each = min(-instance[copy].delta_bytes[W] for copy in held)
        there = self.length_us // max(1, shortest_us)
        headroom = instance.headroom_bytes[self.rank]
        if headroom is not None and each > 0:
            there = min(there, headroom // each)
        later_us = max(0, self.length_us - base_length_us(instance, self.rank))
        return there + -(-later_us // work_us) + 2


def base_length_us(instance: Instance, rank: int) -> int:
    """F, its round trip, B and W of the rank's first stage; nothing is freed before that."""
    first = instance.held[rank][0]
    return instance[first].work_us + instance.round_trip_us[first]


def idle_time_model(
    instance: Instance, stretch: Stretch, ranks: Iterable[int], value_us: int
) -> ExactModel:
    """Make the model of the least idle time of a rank in a stretch, with some ranks exactly.

    The last (first) modelled micro-batch stands for those left out: the stretch ends where it
    begins.

    Args:
        ranks: the modelled ones.
        value_us: no schedule with a larger makespan or period counts.
    """
    count = stretch.num_micro_batches(instance)
    few = tuple(
        copy._replace(num_micro_batches=min(count, copy.num_micro_batches))
        for copy in instance.copies
    )
    held = instance.held[stretch.rank]
    cut = frozenset(copy for copy in held if instance[copy].num_micro_batches > count)
    # The largest distance of ops in a schedule within the value.
    apart_us = value_us + max(instance.origins_us or [0])
    horizon_us = apart_us if stretch.is_opening or not stretch.is_period else 2 * apart_us
    return ExactModel(
        replace(instance, copies=few),
        Objective.MAKESPAN,
        horizon_us,
        ranks,
        starts=(
            add_starts
            if stretch.is_opening
            else partial(_add_starts_to_end, stretch=stretch, end_us=apart_us)
        ),
        minimise=lambda ops: _IdleTime(ops, stretch, cut, apart_us).minimised,
        most_counted=EXACT_MODEL.most_counted_ops_of_idle_time,
        tune=search_from_below,
    )


def _add_starts_to_end(ops: OpVariables, stretch: Stretch, end_us: int) -> None:
    """Add start times of the drain: they count backwards from the end, which is fixed."""
    for index in ops.copies:
        copy = ops.instance[index]
        is_bound = copy.rank == stretch.rank or not stretch.is_period
        soonest_us = ops.instance.step_us(copy.rank) if is_bound else -end_us
        for op_index in ops.instance.op_indices(index):
            # Counted backwards, because CP-SAT tries small values first.
            name = f"{op_index.kind}{index}.{op_index.microbatch}"
            to_end = ops.cp.new_int_var(soonest_us, end_us, name)
            ops.start[index, op_index] = end_us - copy.duration_us[op_index.kind] - to_end


class _IdleTime:
    """The objective: the length of the stretch less the work in it.

    Ops are inside the stretch or outside. One that the inner edge cuts moves the edge by less than
    its duration, which adds no idle time.
    """

    def __init__(
        self, ops: OpVariables, stretch: Stretch, cut: Collection[int], end_us: int
    ) -> None:
        """Add the objective to a model.

        Args:
            cut: copies of which micro-batches are left out.
        """
        self.ops, self.cp, self.instance = ops, ops.cp, ops.instance
        self.stretch, self.cut, self.end_us = stretch, cut, end_us
        held = self.instance.held[stretch.rank]
        longest = max(1, *(self.instance[c].duration_us[kind] for c in held for kind in SPLIT))
        length = self.cp.new_int_var(0, stretch.length_us + longest - 1, "length")
        edge = self._begin_us() + length if stretch.is_opening else self.end_us - length
        self._inside: dict[Node, cp_model.IntVar] = {}
        self._end_at(edge, length)
        steps_us = 0 if stretch.is_opening else self.instance.step_us(stretch.rank)
        done: list[cp_model.LinearExprT] = [steps_us]
        if not stretch.is_opening and not stretch.is_period:
            # Reserve time for the B's and W's of stage copies above the modelled ones.
            for _, end in ends_above(ops):
                self.cp.add(end <= self.end_us)
        for copy in held:
            for op_index in self.instance.op_indices(copy):
                inside = self._inside_literal(copy, op_index, edge)
                done.append(self.instance[copy].duration_us[op_index.kind] * inside)
        idle_us = length - cp_model.LinearExpr.sum(done)
        self.cp.minimize(idle_us)
        self.minimised = Minimised(idle_us)

    def _begin_us(self) -> int:
        """The moment from which the rank's time counts."""
        if not self.stretch.is_period:
            return 0
        if self.instance.origins_us is None:
            raise ValueError("idle times of the period need ranks that begin at fixed times")
        return self.instance.origins_us[self.stretch.rank]

    def _inside_literal(
        self, copy: int, op_index: OpIndex, edge: cp_model.LinearExprT
    ) -> cp_model.IntVar:
        """Return a literal: an op lies between the edge and the rank's start or end."""
        inside = self.cp.new_bool_var("")
        outside = inside.negated()
        before, behind = (inside, outside) if self.stretch.is_opening else (outside, inside)
        self.cp.add(self.ops.end(copy, op_index) <= edge).only_enforce_if(before)
        self.cp.add(self.ops.start[copy, op_index] >= edge).only_enforce_if(behind)
        kind, k = op_index
        sooner = [OpIndex(kind, k - 1), *(OpIndex(s, k) for s in SPLIT[: kind.rank_in_chain][-1:])]
        for other in (self._inside[copy, s] for s in sooner if (copy, s) in self._inside):
            implied = (inside, other) if self.stretch.is_opening else (other, inside)
            self.cp.add_implication(*implied)
        self._inside[copy, op_index] = inside
        return inside

    def _end_at(self, edge: cp_model.LinearExprT, length: cp_model.IntVar) -> None:
        """The stretch has its full length, or ends where micro-batches were left out."""
        cuts = []
        for at in self._cuts():
            cut = self.cp.new_bool_var("")
            self.cp.add(edge == at).only_enforce_if(cut)
            self.cp.add(edge <= at if self.stretch.is_opening else edge >= at)
            cuts.append(cut)
        whole = self.cp.add(length >= self.stretch.length_us)
        whole.only_enforce_if([cut.negated() for cut in cuts])

    def _cuts(self) -> Iterator[cp_model.LinearExprT]:
        """Yield the starts of the last modelled micro-batches, or the ends of the first ones.

        If none is left out, the warm-up ends with the last W: the STEPs after it are no idle time.
        """
        rank = self.stretch.rank
        if self.stretch.is_opening:
            for copy in (chain[0] for chain in self.instance.chains(rank)):
                if copy in self.cut:
                    yield self.ops.start[copy, OpIndex(F, self.instance[copy].last)]
            if not self.cut and self.instance.step_us(rank):
                yield self._last_end()
            return
        for copy in self.instance.held[rank]:
            if copy in self.cut:
                yield self.ops.end(copy, OpIndex(W, 0))

    def _last_end(self) -> cp_model.IntVar:
        """The end of the rank's last op before its STEPs."""
        held = self.instance.held[self.stretch.rank]
        last = self.cp.new_int_var(0, self.end_us, "last end")
        ends = [self.ops.end(copy, OpIndex(W, self.instance[copy].last)) for copy in held]
        self.cp.add_max_equality(last, ends)
        return last
