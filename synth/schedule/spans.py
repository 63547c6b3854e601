"""When ops ran, planned or measured: the neutral form that reports and runs exchange."""

from typing import NamedTuple

from synth.schedule.ops import Op
from synth.schedule.simulate import Timeline


class Span(NamedTuple):
    """One op's time on its rank, in microseconds from a zero that all ranks share."""

    op: Op
    start_us: int
    end_us: int


Spans = list[list[Span]]


def planned_spans(timeline: Timeline) -> Spans:
    """The simulated spans of every rank, in program order."""
    lowered = timeline.lowered
    return [
        [
            Span(op, timeline.start_us[node], timeline.end_us[node])
            for node, op in enumerate(program, lowered.first_node[rank])
        ]
        for rank, program in enumerate(lowered.ops)
    ]
