"""The critical path of a measured iteration.

It is followed from its end: each op or transfer leads to the dependence that ended last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.schedule.critical_path import path_to
from synth.schedule.lowering.lower import Lowered
from synth.schedule.lowering.programs import Transfer
from synth.schedule.measured.execution_trace import Communication, ExecutionTrace


class PathLink(NamedTuple):
    """A node of the critical path: its time, and the gap before it."""

    node: int
    taken_us: int
    gap_us: int


@dataclass(frozen=True)
class Measured:
    """Start and end of nodes of the lowered DAG in one trace, for the nodes that it contains."""

    start_us: dict[int, int]
    end_us: dict[int, int]
    inexact: set[int]


def critical_path(lowered: Lowered, measured: Measured) -> list[PathLink]:
    """Return the path from the first op to the last end; times and gaps add up to that."""
    ops = [n for n in measured.end_us if n < lowered.first_node[-1]]
    last = max(ops, key=measured.end_us.__getitem__, default=None)
    nodes = path_to(last, lambda node: last_awaited(lowered.predecessors[node], measured))
    path: list[PathLink] = []
    for before, node in zip([None, *nodes], nodes, strict=False):
        ready_us = measured.end_us[before] if before is not None else 0
        start_us = measured.start_us[node]
        taken_us = measured.end_us[node] - max(start_us, ready_us)
        path.append(PathLink(node, taken_us, max(0, start_us - ready_us)))
    return path


def last_awaited(before: Sequence[int], measured: Measured) -> int | None:
    """Return the dependence of a node that ended last; None if it waited for none."""
    known = [n for n in before if n in measured.end_us and n not in measured.inexact]
    return max(known, key=measured.end_us.__getitem__, default=None)


def number_nodes(lowered: Lowered) -> dict[object, int]:
    """Number the nodes: every (rank, op), transfer and reduction."""
    nodes: dict[object, int] = {}
    for rank, ops in enumerate(lowered.ops):
        for node, op in enumerate(ops, lowered.first_node[rank]):
            nodes[rank, op] = node
    communications: list[Communication] = [*lowered.transfers, *lowered.collectives]
    for node, communication in enumerate(communications, lowered.first_node[-1]):
        nodes[_name_of(communication)] = node
    return nodes


def _name_of(communication: Communication) -> object:
    """Return the identity of a communication, independent of its planned time."""
    if isinstance(communication, Transfer):
        return communication.value, communication.source, communication.target
    return communication.kind, communication.stage, communication.ranks, communication.number


def by_node(nodes: Mapping[object, int], execution: ExecutionTrace) -> Measured:
    """Map the times of a trace to the nodes of the lowered DAG."""
    start_us, end_us, inexact = {}, {}, set()
    for rank, spans in enumerate(execution.ops):
        for op, start, end in spans:
            if (node := nodes.get((rank, op))) is not None:
                start_us[node], end_us[node] = start, end
    for communication, start, end, exact in execution.communications:
        if (node := nodes.get(_name_of(communication))) is not None:
            start_us[node], end_us[node] = start, end
            if not exact:
                inexact.add(node)
    return Measured(start_us, end_us, inexact)
