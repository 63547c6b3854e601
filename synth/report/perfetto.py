"""Charts as a file for Perfetto (ui.perfetto.dev) and chrome://tracing: Chrome's trace events.

A rank is a process; in it, one under the other, the ops of each chart and the transfers that come
in over each link: planned and measured side by side. The format is that of the "Trace Event Format"
document of the Chromium project: complete events ("ph": "X") in microseconds, which within a track
must not overlap.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from synth.costs import HOST
from synth.schedule.lowering.programs import Transfer, end_name
from synth.schedule.measured.execution_trace import CommunicationSpan, ExecutionTrace

Event = dict[str, Any]


def perfetto_json(executions: Mapping[str, ExecutionTrace]) -> str:
    """Render charts, by name ("planned", "measured"), as Chrome's trace JSON."""
    events: list[Event] = []
    num_ranks = max((len(execution.ops) for execution in executions.values()), default=0)
    for rank in range(num_ranks):
        events.append(_named("process_name", rank, 0, f"rank {rank}"))
        events.append(_meta("process_sort_index", rank, 0, sort_index=rank))
        tracks = _tracks(executions, rank)
        for track, (name, found) in enumerate(tracks.items(), 1):
            events.append(_named("thread_name", rank, track, name))
            events.append(_meta("thread_sort_index", rank, track, sort_index=track))
            events += [{**event, "pid": rank, "tid": track} for event in found]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return _meta(what, pid, tid, name=name)


def _meta(what: str, pid: int, tid: int, **arguments: Any) -> Event:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": arguments}


def _tracks(executions: Mapping[str, ExecutionTrace], rank: int) -> dict[str, list[Event]]:
    """Return a rank's tracks by name: the ops of every chart, then the transfers over each link."""
    tracks: dict[str, list[Event]] = {}
    for name, execution in executions.items():
        tracks[f"ops, {name}"] = [
            _complete(str(op), op.kind, start, end - start)
            for op, start, end in execution.ops[rank]
        ]
    incoming: dict[str, list[Event]] = {}
    for name, execution in executions.items():
        for link, spans in _incoming(execution, rank).items():
            incoming[f"{link}, {name}"] = _one_after_the_other(spans)
    return tracks | dict(sorted(incoming.items(), key=_by_link))


def _by_link(track: tuple[str, list[Event]]) -> str:
    return track[0].rsplit(",", 1)[0]


def _incoming(execution: ExecutionTrace, rank: int) -> dict[str, list[CommunicationSpan]]:
    """Group a rank's receives, transfers to the host and reductions by track."""
    found: defaultdict[str, list[CommunicationSpan]] = defaultdict(list)
    for span in execution.communications:
        communication = span.communication
        if isinstance(communication, Transfer):
            if communication.target == rank:
                found[f"from {end_name(communication.source)}"].append(span)
            elif communication.target == HOST and communication.source == rank:
                found["to the host"].append(span)
        elif rank in communication.ranks:
            found[
                f"sums with {', '.join(str(r) for r in communication.ranks if r != rank)}"
            ].append(span)
    return found


def _one_after_the_other(spans: list[CommunicationSpan]) -> list[Event]:
    """Return a link's transfers one after the other, as the link serves them."""
    events = []
    free_us = 0
    for communication, start, end, exact in sorted(
        spans, key=lambda span: (span.end_us, span.start_us)
    ):
        begins = max(start, free_us)
        name = (
            str(communication.value)
            if isinstance(communication, Transfer)
            else f"gradients of stage {communication.stage}"
        )
        event = _complete(name, "transfer", begins, max(0, end - begins))
        known = "when its reader could go on" if exact else "over by then; nobody waited for it"
        event["args"] = {
            "bytes": communication.num_bytes,
            "planned_us": communication.duration_us,
            "both ends ready at us": start,
            "end": known,
        }
        events.append(event)
        free_us = max(free_us, end)
    return events


def _complete(name: str, category: str, start_us: int, duration_us: int) -> Event:
    return {"name": name, "cat": category, "ph": "X", "ts": start_us, "dur": duration_us}
