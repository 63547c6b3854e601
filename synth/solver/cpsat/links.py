"""Transfers in the exact model, and links that carry them one at a time.

F waits for the activation from above, B for the gradient from below. Stage copies that are not
modelled become delays, since they cannot be faster than empty ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from synth.op_kinds import OpKind
from synth.solver.cpsat.op_variables import OpVariables
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.instance import BW, B, F, OpIndex

# All ops of a kind on a stage copy, and a link from one rank to another.
_Ops: TypeAlias = tuple[int, OpKind]
_Ends: TypeAlias = tuple[int, int]


class _Way(NamedTuple):
    """Through stage copies that are not modelled: the delay, and the slowest transfer on it."""

    delay_us: int
    slowest_us: int


class LinkConstraints:
    """Adds the transfers between the stage copies of a model."""

    def __init__(self, ops: OpVariables) -> None:
        self.cp, self.instance = ops.cp, ops.instance
        self.copies, self.far_us = ops.copies, ops.far_us
        self.start, self.end, self.fusions = ops.start, ops.end, ops.fusions
        # By link and by kind of op and copy, the transfers that run one at a time.
        self._taking_turns: dict[_Ends, dict[_Ops, list[cp_model.IntervalVar]]] = {}

    def add(self) -> None:
        """Add the transfers of every F and B of the copies, and every link between their ranks."""
        modelled = set(self.copies)
        for index in self.copies:
            above = next((c for c in self.instance.chain_above(index) if c in modelled), None)
            if above is None:
                continue
            if above == self.instance[index].above:
                self._pass_on((above, F), (index, F), self.instance[above].down_us)
                of_above = self.instance[above]
                transfer_us = of_above.up_us + of_above.lead_us
                self._pass_on((index, B), (above, B), transfer_us, of_above.lead_us)
            else:
                instance = self.instance
                way = _Way(
                    instance.way_down_us(above, index), instance.slowest_down_us(above, index)
                )
                self._delay((above, F), (index, F), way)
                way = _Way(instance.way_up_us(index, above), instance.slowest_up_us(index, above))
                self._delay((index, B), (above, B), way)
        for index in modelled - {c for one in self.copies for c in self.instance.chain_above(one)}:
            trip = _Way(self.instance.round_trip_us[index], self.instance.slowest_below_us[index])
            self._delay((index, F), (index, B), trip)
        for transfers in self._contended():
            self.cp.add_no_overlap(transfers)

    def _delay(self, source: _Ops, target: _Ops, way: _Way) -> None:
        """Start the k-th op when the value of the k-th op of the source can have arrived."""
        copy, kind = self.instance[source[0]], source[1]
        makers = (F,) if kind == F else (B, BW)
        is_slow = way.slowest_us > min(copy.duration_us[maker] for maker in makers)
        previous: cp_model.LinearExprT | None = None
        for k in range(copy.num_micro_batches):
            ready = self.end(source[0], OpIndex(kind, k)) + way.delay_us
            reader = self.start[target[0], OpIndex(target[1], k)]
            self.cp.add(reader >= ready)
            if is_slow:
                arrival = self.cp.new_int_var(0, self.far_us + way.delay_us, "")
                self.cp.add(arrival >= ready)
                self.cp.add(reader >= arrival)
                if previous is not None:
                    self.cp.add(arrival >= previous + way.slowest_us)
                previous = arrival

    def _pass_on(self, source: _Ops, target: _Ops, lag_us: int, lead_us: int = 0) -> None:
        """Start the k-th transfer when its op has ended and the link is free.

        Ops of one rank end one after the other: where a transfer is over before the next op that
        sends can end, the link is always free.

        Args:
            lag_us: the time of a transfer.
            lead_us: the first part of the target, which does not wait for it.
        """
        copy, kind = source
        ends = (self.instance[copy].rank, self.instance[target[0]].rank)
        quickest_us, slowest_us = self._senders_us(*ends)
        takes_turns = slowest_us > quickest_us and ends[0] != ends[1]
        fusion = self.fusions.get(copy) if kind == B else None
        previous: cp_model.LinearExprT | None = None
        for k in range(self.instance[copy].num_micro_batches):
            op_index = OpIndex(kind, k)
            reader = self.start[target[0], OpIndex(target[1], k)]
            arrival: cp_model.LinearExpr = reader + lead_us
            if takes_turns:
                arrival = self.cp.new_int_var(0, self.far_us + lag_us, "")
                self.cp.add(reader + lead_us >= arrival)
                if previous is not None:
                    self.cp.add(arrival >= previous + lag_us)
                previous = arrival
                interval = self.cp.new_fixed_size_interval_var(arrival - lag_us, lag_us, "")
                of_link = self._taking_turns.setdefault(ends, {})
                of_link.setdefault(source, []).append(interval)
            self.cp.add(arrival >= self.end(copy, op_index) + lag_us)
            if fusion is not None:
                fused_end = self.start[copy, op_index] + self.instance[copy].duration_us[BW]
                self.cp.add(arrival >= fused_end + lag_us).only_enforce_if(fusion.fused_b[k])

    def _contended(self) -> Iterator[list[cp_model.IntervalVar]]:
        """Yield the transfers that must not overlap; those of one kind of op are in order."""
        for of_link in self._taking_turns.values():
            if len(of_link) > 1:
                yield list(chain.from_iterable(of_link.values()))

    def _senders_us(self, source: int, target: int) -> tuple[int, int]:
        """Return the shortest op on a rank that sends to another one, and the longest transfer."""
        instance, shortest, longest = self.instance, self.far_us, 0
        for index in instance.held[source]:
            copy = instance[index]
            if copy.below is not None and instance[copy.below].rank == target != source:
                shortest = min(shortest, copy.duration_us[F])
                longest = max(longest, copy.down_us)
            if copy.above is not None and instance[copy.above].rank == target != source:
                shortest = min(shortest, copy.duration_us[B], copy.duration_us[BW])
                longest = max(longest, instance[copy.above].up_apart_us)
        return shortest, longest
