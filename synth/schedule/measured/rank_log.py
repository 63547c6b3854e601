"""Rank logs: what each rank records of an iteration, and how the logs join to one trace.

Logging calls nothing that the program would not call anyway: each end of a transfer records when it
was ready, and how long it then waited. A transfer starts when both ends are ready. It has ended
when the rank that waited for it could continue. If no rank had to wait, it ended at an unknown time
before its reader asked.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from synth.schedule.lowering.programs import Transfer
from synth.schedule.measured.execution_trace import (
    Communication,
    CommunicationSpan,
    ExecutionTrace,
    OpSpan,
)


class Ready(NamedTuple):
    """The time at which this rank's end of a transfer, or part of a reduction, was ready."""

    communication: Communication
    at_us: int


class Wait(NamedTuple):
    """A rank's wait for a transfer or a reduction; not `blocked`: it had ended already."""

    communication: Communication
    start_us: int
    end_us: int
    blocked: bool


@dataclass
class RankLog:
    """One rank's iteration, in microseconds from its own zero.

    `zero_ns` is that zero on the host's monotonic clock, which ranks of one host share.
    """

    zero_ns: int = 0
    ops: list[OpSpan] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)


def in_turns(spans: Sequence[OpSpan]) -> list[OpSpan]:
    """Return a rank's spans, those of F and BW that ran at once as if they had taken turns.

    So do the two in a timeline of the plan. The time of both is divided as their own times are.
    """
    found = list(spans)
    for place, (forward, backward) in enumerate(pairwise(spans)):
        if backward.start_us >= forward.end_us:
            continue
        start_us = min(forward.start_us, backward.start_us)
        end_us = max(forward.end_us, backward.end_us)
        own_us, other_us = (span.end_us - span.start_us for span in (forward, backward))
        turn_us = start_us + round((end_us - start_us) * own_us / max(1, own_us + other_us))
        found[place] = OpSpan(forward.op, start_us, turn_us)
        found[place + 1] = OpSpan(backward.op, turn_us, end_us)
    return found


def join_logs(log: Sequence[RankLog]) -> ExecutionTrace:
    """Join the logs of all ranks, in rank order, on the time scale of the earliest zero."""
    zero_ns = min(mark.zero_ns for mark in log)
    ready: defaultdict[Communication, list[int]] = defaultdict(list)
    ends: defaultdict[Communication, list[_End]] = defaultdict(list)
    ops = []
    for rank, mark in enumerate(log):
        shift = round((mark.zero_ns - zero_ns) / 1000)
        ops.append([OpSpan(op, start + shift, end + shift) for op, start, end in mark.ops])
        for communication, at in mark.ready:
            ready[communication].append(at + shift)
        for communication, start, end, blocked in mark.waits:
            of_sender = isinstance(communication, Transfer) and communication.target != rank
            known_us = end if blocked else start
            ends[communication].append(_End(not blocked, blocked and of_sender, known_us + shift))
    communications = []
    for communication, found in ends.items():
        if ready[communication]:
            began, over = max(ready[communication]), min(found)
            communications.append(
                CommunicationSpan(communication, began, max(began, over.at_us), not over.unwaited)
            )
    return ExecutionTrace(ops, sorted(communications, key=lambda span: span.start_us))


class _End(NamedTuple):
    """The end of a wait, ordered by how well it shows the end of the transfer: the smallest counts.

    Waits that blocked come first; among them receivers before senders, which may be done when the
    data is in a buffer; then the earliest.
    """

    unwaited: bool
    of_sender: bool
    at_us: int
