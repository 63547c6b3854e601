"""A drawn order of F, B and W with its times, bytes and dependencies, for `reorder.py`."""

from collections.abc import Sequence
from typing import NamedTuple

from synth.families._lib.activations import growth_bytes
from synth.families._lib.family import Setting
from synth.op_kinds import OpKind
from synth.schedule.ops import Op

F, B, W = OpKind.F, OpKind.B, OpKind.W
Order = Sequence[Sequence[Op]]

# The arrival of an input that no op has sent yet.
NEVER = 1 << 62


# An op that waits for another one: its rank, its place there, and the transfer's time (µs).
_Reader = tuple[int, int, int]


# Kind, stage, micro-batch and replica: an op, or what is equal to it.
_AnyOp = tuple[OpKind, int, int, int]


class RankOrder(NamedTuple):
    """The drawn order of a rank, by place.

    Ops of one kind and stage keep their order: `heads` has the first place of each such queue, and
    `next_place` the next one in the same queue, or the number of places.
    """

    order: Sequence[Op]
    kinds: list[OpKind]
    took_us: list[int]
    growth: list[int]
    queue: list[int]
    next_place: list[int]
    heads: list[int]
    readers: list[list[_Reader]]

    @property
    def arrives(self) -> list[int]:
        """Return when the input of each place arrives, before any op has run; `NEVER`: unknown.

        One place more has no op.
        """
        return [0 if op.kind is F and op.stage == 0 else NEVER for op in self.order] + [NEVER]

    def in_drawn_times(self) -> "RankOrder":
        """Return the same for F = B = W = 1 and transfers that take no time."""
        readers = [[(rank, place, 0) for rank, place, _ in own] for own in self.readers]
        return self._replace(took_us=[1] * len(self.order), readers=readers)


class OrderNetwork(NamedTuple):
    """A drawn order with its times, bytes and dependencies, by rank; all attempts share it."""

    ranks: list[RankOrder]

    @staticmethod
    def of(setting: Setting, order: Order) -> "OrderNetwork":
        """Return the network of an order."""
        costs = setting.costs
        took = [stage.duration_us for stage in costs.stages]
        growth = [growth_bytes(costs, stage) for stage in range(setting.num_stages)]
        finder = _Readers(setting, order)
        ranks = []
        for rank, program in enumerate(order):
            queues: dict[tuple[OpKind, int, int], list[int]] = {}
            for place, op in enumerate(program):
                queues.setdefault((op.kind, op.stage, op.replica), []).append(place)
            queue, next_place = [0] * len(program), [len(program)] * len(program)
            for number, own in enumerate(queues.values()):
                for place, after in zip(own, [*own[1:], len(program)], strict=True):
                    queue[place], next_place[place] = number, after
            ranks.append(
                RankOrder(
                    program,
                    [op.kind for op in program],
                    [took[op.stage][op.kind] for op in program],
                    [growth[op.stage][op.kind] for op in program],
                    queue,
                    next_place,
                    [own[0] for own in queues.values()],
                    [finder.of(op, rank) for op in program],
                )
            )
        return OrderNetwork(ranks)

    @property
    def as_ordered(self) -> list[list[int]]:
        """Return the places of all ranks in the drawn order."""
        return [list(range(len(own.order))) for own in self.ranks]

    def in_drawn_times(self) -> "OrderNetwork":
        """Return the network for F = B = W = 1 and transfers that take no time."""
        return OrderNetwork([own.in_drawn_times() for own in self.ranks])


class _Readers:
    """Finds the ops that wait for an op."""

    def __init__(self, setting: Setting, order: Order) -> None:
        self._costs, self._last = setting.costs, setting.num_stages - 1
        self._lags_us: dict[tuple[int, int, int, int], int] = {}
        self._places: dict[_AnyOp, tuple[int, int]] = {
            op: (rank, place)
            for rank, program in enumerate(order)
            for place, op in enumerate(program)
        }

    def of(self, op: Op, rank: int) -> list[_Reader]:
        """Return the ops that wait for one of a rank."""
        kind, stage, micro_batch, replica = op
        if kind is W:
            return []
        if kind is F:
            next_kind, next_stage = (B, stage) if stage == self._last else (F, stage + 1)
            return [self._reader((next_kind, next_stage, micro_batch, replica), stage, rank)]
        own = self._reader((W, stage, micro_batch, replica), stage, rank)
        if not stage:
            return [own]
        return [self._reader((B, stage - 1, micro_batch, replica), stage, rank), own]

    def _reader(self, reader: _AnyOp, stage: int, rank: int) -> _Reader:
        target, place = self._places[reader]
        lag_us = 0 if target == rank else self._lag_us(stage, reader[1], rank, target)
        return target, place, lag_us

    def _lag_us(self, stage: int, to: int, rank: int, target: int) -> int:
        key = (stage, to, rank, target)
        if key not in self._lags_us:
            passed_us = self._costs.boundary_us if stage < to else self._costs.return_us
            self._lags_us[key] = passed_us(min(stage, to), rank, target)
        return self._lags_us[key]
