"""Execution traces: when ops and communication ran in one iteration, planned or measured."""

from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.schedule.lowering.collectives import Collective
from synth.schedule.lowering.programs import Transfer
from synth.schedule.ops import Op, ValueKind
from synth.schedule.simulate import Timeline

Communication = Transfer | Collective


class OpSpan(NamedTuple):
    """The start and end of one op on its rank, in microseconds from a zero common to all ranks."""

    op: Op
    start_us: int
    end_us: int


OpSpans = list[list[OpSpan]]


class CommunicationSpan(NamedTuple):
    """A transfer or a reduction, from the moment at which all its ends were ready to its end.

    Not `exact`: no rank waited for it, so its end is only known to lie before its reader asked.
    """

    communication: Communication
    start_us: int
    end_us: int
    exact: bool = True


class ExecutionTrace(NamedTuple):
    """All events of one iteration: ops, rank by rank in program order, and communication."""

    ops: OpSpans
    communications: list[CommunicationSpan]


def planned_spans(timeline: Timeline) -> OpSpans:
    """The simulated spans of every rank, in program order."""
    lowered = timeline.lowered
    return [
        [
            OpSpan(op, timeline.start_us[node], timeline.end_us[node])
            for node, op in enumerate(program, lowered.first_node[rank])
        ]
        for rank, program in enumerate(lowered.ops)
    ]


def moved_spans(execution: ExecutionTrace) -> dict[str, OpSpans]:
    """The moves of saved activations, as rows of O and of L; empty if nothing moved."""
    rows: dict[str, OpSpans] = {name: [[] for _ in execution.ops] for name in ("out", "back")}
    for communication, start_us, end_us, _ in execution.communications:
        if isinstance(communication, Transfer) and communication.value.kind == ValueKind.MOVED_OUT:
            op = Op(OpKind.OFFLOAD, *communication.value[1:])
            rows["out"][communication.source].append(OpSpan(op, start_us, end_us))
        elif (
            isinstance(communication, Transfer) and communication.value.kind == ValueKind.MOVED_BACK
        ):
            op = Op(OpKind.RELOAD, *communication.value[1:])
            rows["back"][communication.target].append(OpSpan(op, start_us, end_us))
    return rows if any(map(any, rows.values())) else {}


def planned_execution(timeline: Timeline) -> ExecutionTrace:
    """The simulated ops, transfers and reductions."""
    lowered = timeline.lowered
    communications: list[Communication] = [*lowered.transfers, *lowered.collectives]
    spans = [
        CommunicationSpan(communication, timeline.start_us[node], timeline.end_us[node])
        for node, communication in enumerate(communications, lowered.first_node[-1])
    ]
    return ExecutionTrace(planned_spans(timeline), spans)
