"""What one rank sees of an iteration while it runs, and how all ranks' views become one chart.

Nothing is asked of a transfer beyond what the program does with it anyway: each end says when it
was ready, and how long it then had to wait. A transfer starts when both ends are ready. It has
ended when whoever waited for it could go on; where nobody had to wait, it ended at some time
before it was asked for.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from synth.schedule.lowering.programs import Transfer
from synth.schedule.measured.spans import Chart, Flow, FlowSpan, Span


class Ready(NamedTuple):
    """When this rank's end of a transfer (or its part of a reduction) was ready."""

    flow: Flow
    at_us: int


class Wait(NamedTuple):
    """From when to when a rank waited for a transfer or a reduction; not `blocked`: it was over."""

    flow: Flow
    start_us: int
    end_us: int
    blocked: bool


@dataclass
class RankMarks:
    """One rank's iteration, in microseconds from its own zero.

    `zero_ns` is that zero on the host's monotonic clock, which ranks of one host share.
    """

    zero_ns: int = 0
    ops: list[Span] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)


def join_marks(marks: Sequence[RankMarks]) -> Chart:
    """Lay the ranks' views, in rank order, over each other, from the earliest rank's zero on."""
    zero_ns = min(mark.zero_ns for mark in marks)
    ready: defaultdict[Flow, list[int]] = defaultdict(list)
    ends: defaultdict[Flow, list[_End]] = defaultdict(list)
    ops = []
    for rank, mark in enumerate(marks):
        shift = round((mark.zero_ns - zero_ns) / 1000)
        ops.append([Span(op, start + shift, end + shift) for op, start, end in mark.ops])
        for flow, at in mark.ready:
            ready[flow].append(at + shift)
        for flow, start, end, blocked in mark.waits:
            of_sender = isinstance(flow, Transfer) and flow.target != rank
            known_us = end if blocked else start
            ends[flow].append(_End(not blocked, blocked and of_sender, known_us + shift))
    flows = []
    for flow, found in ends.items():
        if ready[flow]:
            began, over = max(ready[flow]), min(found)
            flows.append(FlowSpan(flow, began, max(began, over.at_us), not over.unwaited))
    return Chart(ops, sorted(flows, key=lambda span: span.start_us))


class _End(NamedTuple):
    """When a wait was over. The smallest one counts: a wait that blocked, a receiver's before a
    sender's (who may be done when the data is in a buffer), and the earliest of those."""

    unwaited: bool
    of_sender: bool
    at_us: int
