"""The file for Perfetto: the rules of Chrome's trace events, and the schedule in it."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from synth.report.chart.chart import Chart
from synth.report.chart.timed import TimedSchedule
from synth.report.perfetto import perfetto_json
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Transfer
from synth.schedule.measured.execution_trace import ExecutionTrace, planned_execution
from synth.schedule.rank_memory import peak_bytes
from synth.schedule.simulate import Timeline
from tests.synth.report.test_html import make_plan

Event = dict[str, Any]

FAMILIES = ["1f1b", "zb-v", "chimera", "pipeoffload:half", "zero3"]


def planned(name: str, **changes: Any) -> tuple[Plan, Timeline, Chart]:
    plan = make_plan(name).replace(**changes)
    _, timeline = plan.check()
    return plan, timeline, Chart.planned("planned", plan, timeline)


def measured(chart: Chart, execution: ExecutionTrace) -> Chart:
    timed = TimedSchedule.of_trace(chart.timed.lowered, execution)
    return Chart("measured", "", timed, chart.stages, chart.caps_bytes)


def events_of(*charts: Chart) -> list[Event]:
    data = json.loads(perfetto_json(charts))
    assert set(data) == {"displayTimeUnit", "traceEvents"}
    events: list[Event] = data["traceEvents"]
    return events


def slices(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    tracks: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def names_of(events: list[Event], what: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == what}


def test_ranks_are_processes_and_charts_stand_side_by_side() -> None:
    _, timeline, chart = planned("1f1b")
    execution = planned_execution(timeline)
    events = events_of(chart, measured(chart, execution))
    assert set(names_of(events, "process_name").values()) == {
        "critical path",
        *(f"rank {rank}" for rank in range(4)),
    }
    tracks = names_of(events, "thread_name")
    assert [name for (pid, _), name in sorted(tracks.items()) if pid == 1] == [
        "ops, planned",
        "ops, measured",
        "from rank 0, planned",
        "from rank 0, measured",
        "from rank 2, planned",
        "from rank 2, measured",
    ]
    drawn = [e for pid_tid, found in slices(events).items() for e in found if pid_tid[0] < 4]
    assert len(drawn) == 2 * (sum(map(len, execution.ops)) + len(execution.communications))
    first = next(e for e in drawn if (e["pid"], e["name"]) == (1, "F1.0"))
    assert first["ts"] == execution.ops[1][0].start_us


@pytest.mark.parametrize("name", FAMILIES)
def test_events_are_in_order_and_slices_of_a_track_do_not_overlap(name: str) -> None:
    _, timeline, chart = planned(name)
    # In the second chart, all transfers seem to be under way from the beginning.
    execution = planned_execution(timeline)
    hasty = [span._replace(start_us=0, exact=False) for span in execution.communications]
    events = events_of(chart, measured(chart, execution._replace(communications=hasty)))
    meta = [event["ph"] == "M" for event in events]
    assert meta == sorted(meta, reverse=True)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    for found in slices(events).values():
        for before, after in pairwise(found):
            assert before["ts"] + before["dur"] <= after["ts"]


@pytest.mark.parametrize("name", FAMILIES)
def test_an_arrow_binds_to_the_slices_of_maker_transfer_and_reader(name: str) -> None:
    _, _, chart = planned(name)
    events, lowered = events_of(chart), chart.timed.lowered
    tracks = slices(events)
    flows: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
            assert ("bp" in event) == (event["ph"] != "s")
    seen = []
    for found in flows.values():
        phases = "".join(event["ph"] for event in found)
        assert phases in ("sf", "stf")
        assert [e["ts"] for e in found] == sorted(e["ts"] for e in found)
        bound = []
        for event in found:
            enclosing = [
                e["name"]
                for e in tracks[event["pid"], event["tid"]]
                if e["ts"] <= event["ts"] < e["ts"] + e["dur"]
            ]
            assert len(enclosing) == 1
            bound.append(enclosing[0])
        seen.append(tuple(bound))
    ops = [str(op) for program in lowered.ops for op in program]
    table = lowered.transfer_table
    expected = [
        (ops[made], str(moved.value), ops[read])
        for made, read, moved in zip(table.made, table.read, lowered.transfers, strict=True)
        if 0 <= made < len(ops)
        and read >= 0
        and min(lowered.durations_us[node] for node in (made, read)) > 0
        and moved.duration_us > 0
    ]
    assert set(expected) <= set(seen)
    if name in ("1f1b", "zb-v", "chimera"):
        assert len(seen) == len(lowered.transfers) and sorted(expected) == sorted(seen)


def test_the_memory_of_a_rank_reaches_its_peak_and_is_named_with_its_limit() -> None:
    caps = (40_000_000_000, 39_000_000_000, 38_000_000_000, 37_000_000_000)
    _, _, chart = planned("zb-v", caps_bytes=caps)
    highest: defaultdict[int, int] = defaultdict(int)
    for event in events_of(chart):
        if event["ph"] == "C":
            level = event["args"][f"of {40 - event['pid']} GB"]
            highest[event["pid"]] = max(highest[event["pid"]], level)
    assert tuple(highest[rank] for rank in range(4)) == peak_bytes(chart.timed.lowered)


def test_the_critical_path_is_without_gap_from_the_beginning_to_the_makespan() -> None:
    _, timeline, chart = planned("1f1b")
    events = events_of(chart)
    path = [e for (pid, _), found in slices(events).items() if pid == 4 for e in found]
    assert path[0]["ts"] == 0
    for before, after in pairwise(path):
        assert before["ts"] + before["dur"] == after["ts"]
    assert path[-1]["ts"] + path[-1]["dur"] == timeline.makespan_us
    flagged = [
        (e["ts"], e["dur"])
        for (pid, _), found in slices(events).items()
        for e in found
        if pid < 4 and e["args"]["critical path"]
    ]
    assert sorted(flagged) == [(e["ts"], e["dur"]) for e in path]


def test_an_op_says_what_it_is() -> None:
    _, _, chart = planned("chimera")
    lowered = chart.timed.lowered
    found = {e["name"]: e["args"] for e in events_of(chart) if e["ph"] == "X"}
    op = next(op for op in lowered.ops[1] if op.replica and op.microbatch)
    about = found[str(op)]
    assert (about["stage"], about["replica"]) == (op.stage, 1)
    assert about["micro-batch"] == op.microbatch
    assert about["layers"] == chart.stages[op.stage]
    sent = next(moved for moved in lowered.transfers if isinstance(moved, Transfer))
    assert found[str(sent.value)]["bytes"] == sent.num_bytes
