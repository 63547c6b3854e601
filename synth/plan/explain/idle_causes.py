"""The idle time of each rank by cause; the causes add up to all of it.

A rank's idle time lies before its first op, between two ops, and after its last op. By where it
lies and by what the next op waits for, each piece has a place:

    | warm-up | F F | warm-up, memory | B F | links | B F | other waits | B | drain | W | drain |
                                      ^ first backward               ^ last F

- links: the next op waits for a transfer or a collective between ranks that is under way, or for
  several that follow each other without a pause.
- reductions: the same for reductions of gradients among the devices of a rank.
- memory: a later F of the rank has its input by then, and memory has no room for it: neither now
  nor for what it keeps until its place in the program; and there is no room for another F either.
- warm-up: before the first op, and all other waits until the first backward.
- drain: after the last op, and all other waits once the last F has run.

Two causes are amounts, taken from the waits in between and from those for memory. Imbalance is the
work that the rank has less than the busiest one, counted as if no F and BW ran at once: ranks that
save more time so have no less to do. Memory is at most what the same ops gain without
limits in the best of some eager orders (see `eager_order`); what lies in such places beyond it is
warm-up before the first backward. The remaining waits are those for ops of other ranks.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from synth.costs.costs import IntArray
from synth.objective import Objective
from synth.op_kinds import BACKWARD, OpKind
from synth.plan.explain.eager_order import eager_timelines
from synth.plan.tuning import EXPLAIN
from synth.records.record import Record
from synth.schedule.critical_path import awaited_in
from synth.schedule.lowering.lower import Lowered
from synth.schedule.ops import Op, ValueKind
from synth.schedule.rank_memory import slot_levels
from synth.schedule.simulate import Timeline

CAUSES = ("warm_up", "drain", "links", "reductions", "memory", "imbalance", "dependences")


class RankIdle(Record):
    """The work and the idle time of a rank, in microseconds; idle is the sum of the causes."""

    rank: int
    work_us: int
    idle_us: int
    warm_up_us: int = 0
    drain_us: int = 0
    links_us: int = 0
    reductions_us: int = 0
    memory_us: int = 0
    imbalance_us: int = 0
    dependences_us: int = 0

    @property
    def causes_us(self) -> dict[str, int]:
        """The causes by name."""
        return {cause: getattr(self, f"{cause}_us") for cause in CAUSES}


class _Pieces(NamedTuple):
    """The idle time of a rank by place, in microseconds.

    `early_memory` is memory before the first backward, and `memory` all later.
    """

    warm_up: int = 0
    drain: int = 0
    links: int = 0
    reductions: int = 0
    early_memory: int = 0
    memory: int = 0
    waits: int = 0


def span_us(timeline: Timeline, objective: Objective) -> int:
    """The time of an iteration in which ranks work or are idle.

    That is the period if it is the objective, each rank's from its first op on; else the makespan.
    """
    return timeline.period_us if objective == Objective.PERIOD else timeline.makespan_us


def why_memory_is_no_cause(lowered: Lowered, caps_bytes: Sequence[int] | None) -> str | None:
    """Say why memory is not told apart from other waits; None: it is."""
    schedule = lowered.schedule
    if caps_bytes is None:
        return "the plan has no memory limit"
    if schedule.weights is not None or schedule.versions is not None or schedule.offloads:
        return "weights move or have versions, or activations move"
    if lowered.arrays.num_nodes > EXPLAIN.most_eager_ops:
        return f"eager orders of more than {EXPLAIN.most_eager_ops:,} ops take too long"
    return None


def idle_causes(
    timeline: Timeline, objective: Objective, caps_bytes: Sequence[int] | None = None
) -> tuple[RankIdle, ...]:
    """Return the idle time of each rank within the span of an iteration.

    Args:
        timeline: the simulation of a verified schedule.
        objective: of the plan; see `span_us`.
        caps_bytes: the memory limit of each rank; None: memory is no cause.
    """
    lowered, span = timeline.lowered, span_us(timeline, objective)
    if why_memory_is_no_cause(lowered, caps_bytes) is not None:
        caps_bytes = None
    gaps = _Gaps(timeline, caps_bytes)
    pieces = [gaps.of_rank(rank, span, objective) for rank in range(lowered.num_ranks)]
    gain_us = 0
    if any(each.early_memory or each.memory for each in pieces):
        eager_us = [span_us(each, objective) for each in eager_timelines(lowered)]
        gain_us = max(0, span - min(eager_us, default=span))
    apart_us = timeline.apart_us
    return tuple(
        _rank_idle(rank, work_us, span, _Amounts(max(apart_us) - apart_us[rank], gain_us), each)
        for rank, (work_us, each) in enumerate(zip(timeline.work_us, pieces, strict=True))
    )


class _Amounts(NamedTuple):
    """The most that a rank's idle time is due to imbalance, and to memory."""

    imbalance: int
    memory: int


def _rank_idle(rank: int, work_us: int, span: int, most: _Amounts, pieces: _Pieces) -> RankIdle:
    imbalance = min(most.imbalance, pieces.waits + pieces.memory)
    later = pieces.memory - max(0, imbalance - pieces.waits)
    memory = min(later + pieces.early_memory, most.memory)
    early = max(0, memory - later)
    return RankIdle(
        rank=rank,
        work_us=work_us,
        idle_us=span - work_us,
        warm_up_us=pieces.warm_up + pieces.early_memory - early,
        drain_us=pieces.drain,
        links_us=pieces.links,
        reductions_us=pieces.reductions,
        memory_us=memory,
        imbalance_us=imbalance,
        dependences_us=pieces.waits + pieces.memory - imbalance - (memory - early),
    )


class _Gaps:
    """The pieces of idle time of one schedule."""

    def __init__(self, timeline: Timeline, caps_bytes: Sequence[int] | None) -> None:
        self.timeline, self.lowered, self.caps_bytes = timeline, timeline.lowered, caps_bytes
        levels = slot_levels(self.lowered)
        self.level_bytes: IntArray = np.maximum(levels.waiting, levels.running)
        self.waiting_bytes = levels.waiting
        self.num_ops = self.lowered.first_node[-1]
        self.forwards: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.arrives_us: dict[int, int] = {}
        self.received_bytes: dict[int, int] = {}
        if caps_bytes is not None:
            self._find_forwards()

    def _find_forwards(self) -> None:
        """List the F's of each rank's stage copies, when their inputs arrive, and their sizes.

        An input arrives when it is made and transferred, however late its receive is posted. What
        F and BW at once make is there when both have ended.
        """
        made = {}
        for rank, ops in enumerate(self.lowered.ops):
            for node, op in enumerate(ops, self.lowered.first_node[rank]):
                if op.kind == OpKind.F:
                    self.forwards[rank, op.stage, op.replica].append(node)
                    made[op] = node
        ends = self.lowered.arrays.ends_of_pairs(np.arange(self.num_ops)).tolist()
        for op, node in made.items():
            reads = self.lowered.effects.reads(op)
            makers = (Op(OpKind.F, *value[1:]) for value in reads if value.kind == ValueKind.ACT)
            ends_us = (self.timeline.end_us[ends[made[maker]]] for maker in makers)
            self.arrives_us[node] = max(ends_us, default=0)
        table = self.lowered.transfer_table
        columns = (table.read, table.duration_us, table.num_bytes)
        for read, us, num_bytes in zip(*(each.tolist() for each in columns), strict=True):
            if read in self.arrives_us:
                self.arrives_us[read] += us
                self.received_bytes[read] = num_bytes

    def of_rank(self, rank: int, span: int, objective: Objective) -> _Pieces:
        """Return the pieces of a rank, which add up to the span less its work."""
        first, end = self.lowered.first_node[rank : rank + 2]
        ops, start_us, end_us = self.lowered.ops[rank], self.timeline.start_us, self.timeline.end_us
        if first == end:
            return _Pieces(warm_up=span)
        begin_us = start_us[first] if objective == Objective.PERIOD else 0
        found = dict.fromkeys(_Pieces._fields, 0)
        found["warm_up"] = start_us[first] - begin_us
        found["drain"] = begin_us + span - end_us[end - 1]
        backwards = [i for i, op in enumerate(ops) if op.kind in BACKWARD]
        forwards = [i for i, op in enumerate(ops) if op.kind == OpKind.F]
        first_backward = backwards[0] if backwards else len(ops)
        last_forward = forwards[-1] if forwards else -1
        for node in range(first + 1, end):
            idle_from, idle_to = end_us[node - 1], start_us[node]
            if idle_to == idle_from:
                continue
            place = node - first
            moving = self._moving_before(node)
            moved_from = max(idle_from, min([start_us[one] for one in moving], default=idle_to))
            full_us = self._full_us(rank, node, idle_from, moved_from)
            reduced_us = sum(
                max(0, end_us[one] - max(idle_from, start_us[one]))
                for one in self.lowered.reductions_within_ranks.intersection(moving)
            )
            found["reductions"] += reduced_us
            found["links"] += idle_to - moved_from - reduced_us
            is_early = place <= first_backward
            found["early_memory" if is_early else "memory"] += full_us
            where = "warm_up" if is_early else "drain" if place > last_forward else "waits"
            found[where] += moved_from - idle_from - full_us
        return _Pieces(**found)

    def _moving_before(self, node: int) -> list[int]:
        """Return the transfers and collectives, back to back, for which an op waits last."""
        found: list[int] = []
        before = awaited_in(self.timeline, node)
        while before is not None and before >= self.num_ops:
            found.append(before)
            before = awaited_in(self.timeline, before)
        return found

    def _full_us(self, rank: int, node: int, idle_from: int, idle_to: int) -> int:
        """Return for how long memory alone keeps a rank from an F, within an idle time."""
        if self.caps_bytes is None or idle_to <= idle_from:
            return 0
        refused_us = fitting_us = idle_to
        for forward in self._next_forwards(rank, node):
            arrived_us = max(idle_from, self.arrives_us.get(forward, 0))
            if self._has_room(rank, node, forward):
                fitting_us = min(fitting_us, arrived_us)
            else:
                refused_us = min(refused_us, arrived_us)
        return max(0, fitting_us - refused_us)

    def _next_forwards(self, rank: int, node: int) -> Iterator[int]:
        """Yield the next F behind an op of each stage copy of its rank."""
        for stage, replica in self.lowered.schedule.placement.held[rank]:
            nodes = self.forwards[rank, stage, replica]
            if (place := bisect_right(nodes, node)) < len(nodes):
                yield nodes[place]

    def _has_room(self, rank: int, node: int, forward: int) -> bool:
        """True if a later F could run before an op within the limit, and keep what it makes."""
        assert self.caps_bytes is not None
        op = self.lowered.ops[rank][forward - self.lowered.first_node[rank]]
        effects, cap = self.lowered.effects, self.caps_bytes[rank]
        kept = sum(map(effects.bytes_of, effects.makes(op))) + self.received_bytes.get(forward, 0)
        now = int(self.waiting_bytes[node + rank])
        until_then = int(self.level_bytes[node + rank : forward + rank].max())
        return max(now + effects.rise_bytes(op), until_then + kept) <= cap
