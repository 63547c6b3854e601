"""A schedule in time, planned or measured: what a chart of it shows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from synth.costs.costs import IntArray
from synth.report.explain.critical_path import (
    Measured,
    by_node,
    critical_path,
    last_awaited,
    number_nodes,
)
from synth.schedule.arrays import Flags
from synth.schedule.critical_path import path_to
from synth.schedule.lowering.lower import Lowered
from synth.schedule.measured.execution_trace import ExecutionTrace
from synth.schedule.rank_memory import SlotLevels, slot_levels
from synth.schedule.simulate import Timeline

NOTHING = -1


@dataclass(frozen=True, eq=False)
class TimedSchedule:
    """The times of the nodes of a lowered schedule, in microseconds, by node.

    Attributes:
        start_us: a node that a trace does not have takes no time.
        end_us: see `start_us`.
        inexact: true if the end is only known to lie before it was asked for.
        awaited: the dependence that ended last, or `NOTHING`.
        path: the nodes of the critical path, in order; empty if there is none.
        known: false for nodes that a trace does not have.
        is_measured: the times are of a run.
    """

    lowered: Lowered
    start_us: IntArray
    end_us: IntArray
    inexact: Flags
    awaited: IntArray
    path: IntArray
    known: Flags
    is_measured: bool = False

    @cached_property
    def levels(self) -> SlotLevels:
        """The memory of all ranks between ops, and while each runs."""
        return slot_levels(self.lowered)

    @cached_property
    def last_us(self) -> int:
        """The end of the last op."""
        return int(self.end_us[: self.lowered.first_node[-1]].max(initial=0))

    def nodes_of(self, rank: int) -> IntArray:
        """Return the nodes of a rank's ops."""
        return np.arange(*self.lowered.first_node[rank : rank + 2])

    def memory_of(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yield start, end and bytes while a rank waits and while it runs an op, in turns."""
        before_us, levels = 0, self.levels
        for node in self.nodes_of(rank):
            start_us, end_us = int(self.start_us[node]), int(self.end_us[node])
            yield before_us, start_us, int(levels.waiting[node + rank])
            yield start_us, end_us, int(levels.running[node + rank])
            before_us = end_us
        behind = self.lowered.first_node[rank + 1] + rank
        yield before_us, self.last_us, int(levels.waiting[behind])

    @classmethod
    def of_timeline(cls, timeline: Timeline) -> Self:
        """Take the times of a simulation, which has all nodes."""
        lowered = timeline.lowered
        start_us, end_us = (
            np.array(each, dtype=np.int64) for each in (timeline.start_us, timeline.end_us)
        )
        awaited = _last_to_end(lowered, end_us)
        inexact, known = np.zeros(len(end_us), np.bool_), np.ones(len(end_us), np.bool_)
        ends_us = end_us[: lowered.first_node[-1]]
        last = int(ends_us.argmax()) if len(ends_us) else None
        path = np.array(
            path_to(last, lambda node: None if awaited[node] == NOTHING else int(awaited[node])),
            dtype=np.int64,
        )
        return cls(lowered, start_us, end_us, inexact, awaited, path, known)

    @classmethod
    def of_trace(cls, lowered: Lowered, execution: ExecutionTrace, *, late: bool = False) -> Self:
        """Take the times of a traced iteration.

        Args:
            late: iterations overlap, so that one of them has no critical path.
        """
        times = by_node(number_nodes(lowered), execution)
        return cls._of(lowered, times, has_path=not late, is_measured=True)

    @classmethod
    def _of(
        cls, lowered: Lowered, times: Measured, *, has_path: bool, is_measured: bool = False
    ) -> Self:
        num_nodes = len(lowered.durations)
        awaited = np.full(num_nodes, NOTHING)
        for node in times.end_us:
            before = last_awaited(lowered.predecessors[node], times)
            awaited[node] = NOTHING if before is None else before
        inexact, known = np.zeros((2, num_nodes), dtype=np.bool_)
        inexact[list(times.inexact)] = True
        known[list(times.end_us)] = True
        path = [link.node for link in critical_path(lowered, times)] if has_path else []
        return cls(
            lowered,
            *_filled(lowered, times),
            inexact,
            awaited,
            np.array(path, dtype=np.int64),
            known,
            is_measured,
        )


def _last_to_end(lowered: Lowered, end_us: IntArray) -> IntArray:
    """Return by node the dependence that ends last, the first of several, or `NOTHING`."""
    before, after = lowered.edges
    awaited = np.full(len(end_us), NOTHING)
    # Edges in the order in which the last written to a node is the one that counts.
    order = np.lexsort((-np.arange(len(before)), end_us[before]))
    awaited[after[order]] = before[order]
    return awaited


def _filled(lowered: Lowered, times: Measured) -> tuple[IntArray, IntArray]:
    """Return starts and ends; an op without times is an instant at the end of the one before."""
    first = set(lowered.first_node)
    start_us, end_us = np.zeros((2, len(lowered.durations)), dtype=np.int64)
    before_us = 0
    for node in range(len(start_us)):
        if node in first:
            before_us = 0
        start_us[node] = times.start_us.get(node, before_us)
        before_us = end_us[node] = times.end_us.get(node, before_us)
    return start_us, end_us
