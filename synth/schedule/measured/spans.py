"""When ops ran and values moved, planned or measured: the neutral form that reports exchange."""

from typing import NamedTuple

from synth.kinds import OpKind
from synth.schedule.lowering.programs import Transfer
from synth.schedule.lowering.reductions import Reduction
from synth.schedule.ops import Op, ValueKind
from synth.schedule.simulate import Timeline

Flow = Transfer | Reduction


class Span(NamedTuple):
    """One op's time on its rank, in microseconds from a zero that all ranks share."""

    op: Op
    start_us: int
    end_us: int


Spans = list[list[Span]]


class FlowSpan(NamedTuple):
    """From when a transfer or a reduction could start (both ends ready) to its end.

    Not `exact`: nobody waited for it, so all that is known of its end is that it was over when
    its reader asked.
    """

    flow: Flow
    start_us: int
    end_us: int
    exact: bool = True


class Chart(NamedTuple):
    """All that happened in one iteration: ops rank by rank in program order, and flows."""

    ops: Spans
    flows: list[FlowSpan]


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


def moved_spans(chart: Chart) -> dict[str, Spans]:
    """When what ranks had saved left them and came back, as rows of O and of L; none: no rows."""
    rows: dict[str, Spans] = {name: [[] for _ in chart.ops] for name in ("out", "back")}
    for flow, start_us, end_us, _ in chart.flows:
        if isinstance(flow, Transfer) and flow.value.kind == ValueKind.OUT:
            op = Op(OpKind.OFFLOAD, *flow.value[1:])
            rows["out"][flow.source].append(Span(op, start_us, end_us))
        elif isinstance(flow, Transfer) and flow.value.kind == ValueKind.BACK:
            op = Op(OpKind.RELOAD, *flow.value[1:])
            rows["back"][flow.target].append(Span(op, start_us, end_us))
    return rows if any(map(any, rows.values())) else {}


def planned_chart(timeline: Timeline) -> Chart:
    """The simulated ops, transfers and reductions."""
    lowered = timeline.lowered
    flows: list[Flow] = [*lowered.transfers, *lowered.reductions]
    spans = [
        FlowSpan(flow, timeline.start_us[node], timeline.end_us[node])
        for node, flow in enumerate(flows, lowered.first_node[-1])
    ]
    return Chart(planned_spans(timeline), spans)
