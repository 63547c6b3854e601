"""Start times in the models' terms: from an order, to an order, and what they are worth.

The models name the k-th op of a kind to start on a rank number k, whatever micro-batch it belongs
to (the FIFO lemma), and write BW as a B with a W right behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.kinds import OpKind
from synth.schedule.ops import Op
from synth.solve.construct import number
from synth.solve.precedences import Slot
from synth.solve.problem import Objective
from synth.solve.ranks import BW, SPLIT, STEP, B, F, Ranks, W

Starts = dict[tuple[int, Slot], int]


class Pair(NamedTuple):
    """On a rank, the B and the W (by their numbers) that one BW does."""

    rank: int
    backward: int
    weight: int


@dataclass(frozen=True)
class Solution:
    """When each op starts, and which B and W are fused."""

    starts: Starts
    fused: frozenset[Pair] = field(default=frozenset())

    def programs(self, num_ranks: int) -> tuple[tuple[Op, ...], ...]:
        """Read the orders off the starts; ops of no duration follow F, B, W and their number."""
        fused_b = {(pair.rank, pair.backward) for pair in self.fused}
        fused_w = {(pair.rank, pair.weight) for pair in self.fused}
        ordered: list[list[tuple[int, int, int, OpKind]]] = [[] for _ in range(num_ranks)]
        for (rank, (kind, k)), start in self.starts.items():
            if kind == W and (rank, k) in fused_w:
                continue
            written = BW if kind == B and (rank, k) in fused_b else kind
            ordered[rank].append((start, kind.rank_in_chain, k, written))
        return tuple(
            number(rank, [kind for *_, kind in sorted(ops)]) for rank, ops in enumerate(ordered)
        )

    def value_us(self, ranks: Ranks, objective: Objective) -> int:
        """The objective in the model's terms: no transfer waits for a buffer."""
        spans = []
        for rank, costs in enumerate(ranks.ranks):
            durations, last = costs.duration_us, Slot(W, ranks.num_micro_batches - 1)
            begin, end = self.starts[rank, last], durations[W]
            for pair in self.fused:
                if (pair.rank, pair.weight) == (rank, last.microbatch):
                    begin, end = self.starts[rank, Slot(B, pair.backward)], durations[BW]
            origin = self.starts[rank, Slot(F, 0)] if objective == Objective.PERIOD else 0
            spans.append(begin + end + durations[STEP] - origin)
        return max(spans)


def solution_of(programs: Sequence[Sequence[Op]], ranks: Ranks) -> Solution:
    """Simulate orders, each op as early as possible, transfers of a link in turns."""
    return _Simulation(programs, ranks).run()


class _Simulation:
    """Ranks take turns; each runs until an op's input is not there yet."""

    def __init__(self, programs: Sequence[Sequence[Op]], ranks: Ranks) -> None:
        self.ranks = ranks
        self.kinds = [[op.kind for op in program if op.kind != STEP] for program in programs]
        self.counts = [dict.fromkeys(SPLIT, 0) for _ in programs]
        self.places = [0] * len(programs)
        self.free_us = [0] * len(programs)
        self.arrivals: dict[tuple[int, OpKind], list[int]] = {}
        self.starts: Starts = {}
        self.fused: set[Pair] = set()

    def run(self) -> Solution:
        pending = True
        while pending:
            pending = any([self._advance(rank) for rank in range(len(self.kinds))])
        return Solution(self.starts, frozenset(self.fused))

    def _advance(self, rank: int) -> bool:
        """Run a rank as far as it goes; whether it went anywhere."""
        before = self.places[rank]
        while self.places[rank] < len(self.kinds[rank]):
            kind = self.kinds[rank][self.places[rank]]
            at = self._ready_us(rank, F if kind == F else B) if kind != W else 0
            if at is None:
                break
            self._place(rank, kind, max(at, self.free_us[rank]))
            self.places[rank] += 1
        return self.places[rank] > before

    def _ready_us(self, rank: int, kind: OpKind) -> int | None:
        """When the input of the next F or B arrives; None: not known yet."""
        if (kind == F and rank == 0) or (kind == B and rank == len(self.kinds) - 1):
            return 0
        arrived = self.arrivals.get((rank, kind), [])
        count = self.counts[rank][kind]
        return arrived[count] if count < len(arrived) else None

    def _place(self, rank: int, kind: OpKind, at: int) -> None:
        counts, durations = self.counts[rank], self.ranks[rank].duration_us
        end = self.free_us[rank] = at + durations[kind]
        if kind == BW:
            self.fused.add(Pair(rank, counts[B], counts[W]))
        for part in (B, W) if kind == BW else (kind,):
            self.starts[rank, Slot(part, counts[part])] = at
            at += min(durations[B], durations[BW])
            counts[part] += 1
        if kind == F and rank + 1 < len(self.kinds):
            self._send(rank + 1, F, end, self.ranks[rank].down_us)
        elif kind in (B, BW) and rank > 0:
            self._send(rank - 1, B, end, self.ranks[rank - 1].up_us)

    def _send(self, target: int, kind: OpKind, end: int, lag_us: int) -> None:
        arrived = self.arrivals.setdefault((target, kind), [])
        arrived.append(max(end, arrived[-1] if arrived else 0) + lag_us)


def split(programs: Sequence[Sequence[Op]]) -> tuple[tuple[Op, ...], ...]:
    """An order with B W for BW and without STEP."""
    parts = {BW: (B, W), STEP: ()}
    return tuple(
        number(stage, [k for op in program for k in parts.get(op.kind, (op.kind,))])
        for stage, program in enumerate(programs)
    )


def keeps_caps(programs: Sequence[Sequence[Op]], ranks: Ranks) -> bool:
    """Whether every op is allowed where it stands."""
    for program, rank in zip(programs, ranks.ranks, strict=True):
        counts = dict.fromkeys(SPLIT, 0)
        for op in program:
            if op.kind == STEP:
                continue
            if not rank.allows(op.kind, *counts.values()):
                return False
            for part in (B, W) if op.kind == BW else (op.kind,):
                counts[part] += 1
    return True
