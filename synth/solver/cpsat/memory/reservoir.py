"""The memory cap of a rank that holds several stages, as a reservoir."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from synth.op_kinds import OpKind
from synth.solver.cpsat.or_tools import cp_model
from synth.solver.instance.stage_copy import StageCopy


class UsageEvent(NamedTuple):
    """A change of the usage at a moment."""

    at: cp_model.LinearExprT
    change_bytes: int


def events_of(
    copy: StageCopy, kind: OpKind, start: cp_model.LinearExprT, end: cp_model.LinearExprT
) -> list[UsageEvent]:
    """Return the events of an op: it needs its peak while it runs, then its delta remains."""
    peak_above, delta = copy.peak_above_bytes[kind], copy.delta_bytes[kind]
    events = (UsageEvent(start, peak_above), UsageEvent(end, delta - peak_above))
    return [event for event in events if event.change_bytes]


def add_reservoir(
    cp: cp_model.CpModel, events: Sequence[UsageEvent], headroom_bytes: int, usage_bytes: int = 0
) -> None:
    """Keep the usage within the headroom; changes at one moment count together.

    Args:
        usage_bytes: usage before all events.
    """
    highest = headroom_bytes - usage_bytes
    rises = sum(max(0, event.change_bytes) for event in events)
    if not events or rises <= highest:
        return
    falls = sum(min(0, event.change_bytes) for event in events)
    times = [event.at for event in events]
    changes = [event.change_bytes for event in events]
    cp.add_reservoir_constraint(times, changes, min(0, falls), max(0, highest))
