"""Exact simulation: each op and transfer starts once its predecessors in the graph have ended."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.op_kinds import OpKind
from synth.schedule.lowering.edges import Edges
from synth.schedule.lowering.lower import Lowered


class DeadlockError(Exception):
    """The graph has a cycle; each of `nodes` waits for the next one."""

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(nodes)
        self.nodes = nodes


@dataclass(frozen=True)
class Timeline:
    """The start and end of each node of a lowered schedule, in microseconds from the first op."""

    lowered: Lowered
    start_us: list[int]
    end_us: list[int]

    @cached_property
    def makespan_us(self) -> int:
        """The time from the first op to the last, over all ranks."""
        num_ops = self.lowered.first_node[-1]
        return max(self.end_us[:num_ops], default=0) - min(self.start_us[:num_ops], default=0)

    @cached_property
    def period_us(self) -> int:
        """The maximum over ranks of (end of last op − start of first op).

        The zero-bubble papers call it cost (arXiv 2401.10241).
        """
        first = self.lowered.first_node
        spans = [
            self.end_us[first[rank + 1] - 1] - self.start_us[first[rank]]
            for rank in range(self.lowered.num_ranks)
            if first[rank + 1] > first[rank]
        ]
        return max(spans, default=0)

    def begin_us(self, rank: int, *, late: bool) -> int:
        """The moment at which a rank begins its program.

        All begin with the first op, or with `late` validation each at the end of its program of the
        iteration before, one period earlier than its end of this one.
        """
        first = self.lowered.first_node
        if not late or first[rank] == first[rank + 1]:
            return 0
        return self.end_us[first[rank + 1] - 1] - self.period_us

    @cached_property
    def work_us(self) -> tuple[int, ...]:
        """The compute time of each rank."""
        first, durations = self.lowered.first_node, self.lowered.durations_us
        return tuple(
            sum(durations[first[rank] : first[rank + 1]]) for rank in range(self.lowered.num_ranks)
        )

    @cached_property
    def apart_us(self) -> tuple[int, ...]:
        """The compute time of each rank if no F and BW ran at once."""
        lowered, overlapped = self.lowered, self.lowered.arrays.overlapped
        if not len(overlapped):
            return self.work_us
        work_us = np.array(self.work_us)
        apart_us = lowered.table.duration_us[lowered.arrays.classes]
        rank = lowered.arrays.rank[overlapped]
        for node in (overlapped, overlapped + 1):
            np.add.at(work_us, rank, apart_us[node] - lowered.durations[node])
        return tuple(work_us.tolist())

    @property
    def least_us(self) -> int:
        """A lower bound of every order of the same ops: the most compute time of a rank.

        If F and BW run at once, another order may have more such pairs: as many as leave no F, or
        no BW, by itself. A pair hides no more than either stage does.
        """
        lowered = self.lowered
        if not len(lowered.arrays.overlapped):
            return max(self.work_us)
        work_us = list(self.apart_us)
        stages = lowered.costs.stages
        for own, ops in enumerate(lowered.ops):
            work_us[own] -= min(
                sum(stages[op.stage].hidden_us for op in ops if op.kind == kind)
                for kind in (OpKind.F, OpKind.BW)
            )
        return max(work_us)

    @property
    def mean_work_us(self) -> float:
        """The mean compute time of a rank."""
        return sum(self.work_us) / max(1, len(self.work_us))

    def mean_idle(self, span_us: int) -> float:
        """1 − (mean work of a rank) / span: the mean idle share, imbalance included."""
        return 1 - self.mean_work_us / span_us if span_us else 0.0

    def bubble_rate(self, span_us: int) -> float:
        """1 − (largest work of a rank) / span, where span is the makespan or the period."""
        return 1 - max(self.work_us) / span_us if span_us else 0.0


def simulate(lowered: Lowered) -> Timeline:
    """Run the longest-path recurrence over the DAG, in topological order (Kahn's algorithm).

    Raises:
        DeadlockError: the graph has a cycle, that is, the programs wait for each other.
    """
    durations, (edge_from, edge_to) = lowered.durations_us, lowered.edges
    num_nodes = len(durations)
    waiting = np.bincount(edge_to, minlength=num_nodes).tolist()
    # The successors of node n are flat[begins[n] : begins[n + 1]].
    # A stable sort is quick on edges that come in a few sorted runs.
    flat = edge_to[edge_from.argsort(kind="stable")].tolist()
    begins = [0, *np.bincount(edge_from, minlength=num_nodes).cumsum().tolist()]
    start = [0] * num_nodes
    end = [0] * num_nodes
    order = [node for node, count in enumerate(waiting) if count == 0]
    for node in order:
        ends = end[node] = start[node] + durations[node]
        for after in flat[begins[node] : begins[node + 1]]:
            if start[after] < ends:
                start[after] = ends
            waiting[after] -= 1
            if not waiting[after]:
                order.append(after)
    if len(order) < num_nodes:
        raise DeadlockError(_find_cycle(lowered.edges, waiting))
    return Timeline(lowered, start, end)


def _find_cycle(edges: Edges, waiting: list[int]) -> list[int]:
    """Follow the first blocked predecessor of each, from a blocked node until one repeats."""
    is_blocked = np.array(waiting) > 0
    among = is_blocked[edges.before] & is_blocked[edges.after]
    awaited = np.zeros(len(waiting), dtype=np.int64)
    # Backwards, so that the first edge of a node is written last.
    awaited[edges.after[among][::-1]] = edges.before[among][::-1]
    node = int(is_blocked.argmax())
    seen: dict[int, int] = {}
    path: list[int] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = int(awaited[node])
    return path[seen[node] :]
