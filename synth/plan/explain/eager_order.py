"""The same ops run eagerly: what a schedule would take if memory forbade nothing."""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from synth.op_kinds import OpKind
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.model import Schedule
from synth.schedule.ops import Op, Value
from synth.schedule.simulate import DeadlockError, Timeline, simulate

# A rank becomes free.
_FREE = ()

_Unit = tuple[Op, ...]

# The kinds that go first, second and so on; all kinds together: the program alone decides.
_BACKWARDS = (OpKind.R, OpKind.B, OpKind.BW)
_PRIORITIES: tuple[tuple[tuple[OpKind, ...], ...], ...] = (
    (tuple(OpKind),),
    (_BACKWARDS, (OpKind.F,), (OpKind.W,)),
    ((OpKind.F,), _BACKWARDS, (OpKind.W,)),
)


def eager_timelines(lowered: Lowered) -> Iterator[Timeline]:
    """Simulate the ops of a schedule in eager orders, without memory limits.

    Whenever a rank is free it runs one of its ops whose inputs are there (work-conserving list
    scheduling, Graham 1966): that which is first in its program; or B before F before W, or F
    before B before W, in the order of the program. Transfers delay inputs by their own time; the
    simulation of the order that results counts also their waits for each other. F and BW that run
    at once stay together, as one op with the inputs of both. Orders that deadlock, because links
    keep the order of what they transfer, are left out.

    Args:
        lowered: a schedule of F, B, W, BW and R, with one update at its end.
    """
    for kinds in _PRIORITIES:
        programs = _EagerRun(lowered, kinds).programs()
        schedule = replace(lowered.schedule, programs=programs)
        with suppress(DeadlockError):
            yield simulate(lower(schedule, lowered.costs))


class _EagerRun:
    """The event loop: values arrive on ranks, and ranks become free.

    A unit is an op, or F and BW that run at once.
    """

    def __init__(self, lowered: Lowered, priorities: tuple[tuple[OpKind, ...], ...]) -> None:
        self.effects = lowered.effects
        self.units = [list(_units(ops, lowered.schedule)) for ops in lowered.schedule.programs]
        self.duration_us = {
            op: lowered.durations_us[node]
            for rank, ops in enumerate(lowered.ops)
            for node, op in enumerate(ops, lowered.first_node[rank])
            if op.kind != OpKind.STEP
        }
        self.moves: defaultdict[Value, list[tuple[int, int]]] = defaultdict(list)
        for transfer in lowered.transfers:
            self.moves[transfer.value].append((transfer.target, transfer.duration_us))
        self.level = {kind: number for number, kinds in enumerate(priorities) for kind in kinds}
        self.missing: dict[_Unit, int] = {}
        self.readers: defaultdict[tuple[int, Value], list[tuple[int, _Unit]]] = defaultdict(list)
        self.ready: list[list[tuple[int, int]]] = [[] for _ in self.units]
        for rank, units in enumerate(self.units):
            for place, unit in enumerate(units):
                values = [value for op in unit for value in self.effects.reads(op)]
                self.missing[unit] = len(values)
                for value in values:
                    self.readers[rank, value].append((place, unit))
                if not values:
                    self._push(rank, place, unit)

    def programs(self) -> tuple[tuple[Op, ...], ...]:
        """Return the order of each rank's ops."""
        orders: list[list[Op]] = [[] for _ in self.units]
        events: list[tuple[int, int, tuple[object, ...]]] = [
            (0, rank, _FREE) for rank in range(len(orders))
        ]
        is_free = [False] * len(orders)
        while events:
            now_us = events[0][0]
            touched = set()
            while events and events[0][0] == now_us:
                _, rank, value = heapq.heappop(events)
                touched.add(rank)
                if value == _FREE:
                    is_free[rank] = True
                else:
                    self._arrive(rank, value)
            for rank in sorted(touched):
                if is_free[rank] and self.ready[rank]:
                    _, place = heapq.heappop(self.ready[rank])
                    unit = self.units[rank][place]
                    orders[rank] += unit
                    is_free[rank] = False
                    end_us = now_us + sum(self.duration_us[op] for op in unit)
                    for made in (value for op in unit for value in self.effects.makes(op)):
                        for target, transfer_us in ((rank, 0), *self.moves[made]):
                            heapq.heappush(events, (end_us + transfer_us, target, made))
                    heapq.heappush(events, (end_us, rank, _FREE))
        return tuple(map(tuple, orders))

    def _push(self, rank: int, place: int, unit: _Unit) -> None:
        level = min(self.level[op.kind] for op in unit)
        heapq.heappush(self.ready[rank], (level, place))

    def _arrive(self, rank: int, value: tuple[object, ...]) -> None:
        assert isinstance(value, Value)
        for place, unit in self.readers[rank, value]:
            self.missing[unit] -= 1
            if not self.missing[unit]:
                self._push(rank, place, unit)


def _units(ops: Iterable[Op], schedule: Schedule) -> Iterator[_Unit]:
    """Yield the ops of a program one by one, and those that run at once together."""
    left = iter(ops)
    for op in left:
        yield (op, next(left)) if op in schedule.overlapped else (op,)
