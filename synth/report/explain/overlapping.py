r"""Causes of the difference from the plan if iterations overlap (post-validation).

Such iterations have no critical path of their own: what held up one rank may lie in the iteration
before. So the time of one rank is taken apart, from end to end of its iteration. It is the rank
that the plan gives the longest span, because that one sets the pace:

    end of the step before │ outside │ F │ wait │ F │ … │ validation │ B │ gap │ W │ … │ STEP │

    measured − predicted = ops + jitter + waits (less those planned) + gaps + validation + outside

What is made final of the step before is part of the validation, and of no op. A STEP that was
profiled for post-validation counts it, so it then is faster than planned by as much.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from synth.op_kinds import MOVES, OpKind
from synth.report.explain.critical_path import Measured, by_node, last_awaited, number_nodes
from synth.report.explain.difference import (
    Difference,
    NodeClass,
    classes_of,
    path_parts,
    typical_us_of,
)
from synth.schedule.lowering.lower import Lowered
from synth.schedule.measured.execution_trace import ExecutionTrace
from synth.schedule.simulate import Timeline


class _Ran(NamedTuple):
    """An op as it ran, and the time since the op before: waiting, then a gap."""

    node: int
    taken_us: int
    waited_us: int
    gap_us: int
    validates: bool


def explain_overlapping(
    planned: Timeline,
    executions: Sequence[ExecutionTrace],
    index: int,
    measured_us: float,
    predicted_us: float,
) -> Difference:
    """Decompose the difference between a measured iteration and the period.

    Args:
        planned: an iteration alone.
        executions: all traced iterations, from which typical times are taken.
        measured_us: the time of that iteration, from end to end.
    """
    lowered, rank = planned.lowered, _pace_setter(planned)
    nodes = number_nodes(lowered)
    every = [by_node(nodes, execution) for execution in executions]
    classes = classes_of(lowered)
    typical = typical_us_of(classes, every)
    ran = list(_ran_on(lowered, rank, every[index]))
    parts: defaultdict[NodeClass, list[tuple[float, float]]] = defaultdict(list)
    usual_us = 0.0
    for each in ran:
        planned_us = planned.end_us[each.node] - planned.start_us[each.node]
        parts[classes[each.node]].append((planned_us, each.taken_us))
        usual_us += typical[classes[each.node]]
    own_us = sum(planned_us for times in parts.values() for planned_us, _ in times)
    taken_us = sum(each.taken_us for each in ran)
    waited_us = sum(each.waited_us for each in ran)
    gaps_us = sum(each.gap_us for each in ran if not each.validates)
    validated_us = sum(each.gap_us for each in ran if each.validates)
    return Difference(
        rank=rank,
        predicted_us=predicted_us,
        measured_us=measured_us,
        ops_us=usual_us - own_us,
        transfers_us=waited_us - (predicted_us - own_us),
        gaps_us=gaps_us,
        norm_us=validated_us,
        jitter_us=taken_us - usual_us,
        outside_us=measured_us - taken_us - waited_us - gaps_us - validated_us,
        room_us=0.0,
        path=path_parts(parts),
    )


def _pace_setter(planned: Timeline) -> int:
    """Return the rank with the longest span from its first op to its last."""
    first = planned.lowered.first_node
    spans = [
        planned.end_us[end - 1] - planned.start_us[begin] if begin < end else 0
        for begin, end in pairwise(first)
    ]
    return spans.index(max(spans))


def _ran_on(lowered: Lowered, rank: int, measured: Measured) -> Iterator[_Ran]:
    """Return a rank's ops in order; it validates before the first one that is no F or move."""
    before_us: int | None = None
    has_validated = False
    for node, op in enumerate(lowered.ops[rank], lowered.first_node[rank]):
        if node not in measured.end_us:
            continue
        start_us, end_us = measured.start_us[node], measured.end_us[node]
        validates = not has_validated and op.kind not in (OpKind.F, *MOVES)
        has_validated |= validates
        if before_us is None:
            before_us = start_us
        awaited = last_awaited(lowered.predecessors[node], measured)
        there_us = before_us if awaited is None else measured.end_us[awaited]
        ready_us = min(max(there_us, before_us), start_us)
        yield _Ran(node, end_us - start_us, ready_us - before_us, start_us - ready_us, validates)
        before_us = end_us
