"""Comparison of rehearsed ranks with their plan: its iteration with the times that they had."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from synth.costs.costs import HOST, Costs
from synth.op_kinds import OpKind
from synth.report.explain.difference import difference_text
from synth.report.explain.run_against_plan import (
    MeasuredRun,
    RunComparison,
    durations,
    memory_table,
    op_table,
    shared_timeline,
)
from synth.report.text.tables import table
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered, Transfer, lower
from synth.schedule.measured.execution_trace import (
    OpSpan,
    OpSpans,
    planned_execution,
    planned_spans,
)
from synth.schedule.measured.rank_log import Wait
from synth.schedule.simulate import simulate
from synth.units import format_bytes, format_us


@dataclass(frozen=True)
class RehearsedRank:
    """The measurements of one rank.

    Attributes:
        steps: the spans of its ops in each timed step.
        peak_bytes: the most that it held at once.
        extra_bytes: of its optimizer, beyond the plan's.
        reserved_bytes: taken from the device at most by CUDA's caching allocator; None: on a CPU.
        waited_us: for other ranks in a step, the median, with arrivals as planned; None: everything
            was there at once.
    """

    steps: Sequence[Sequence[OpSpan]]
    peak_bytes: int
    extra_bytes: int = 0
    reserved_bytes: int | None = None
    waited_us: int | None = None


def waited_us(rank: int, steps: Sequence[Sequence[Wait]]) -> int:
    """Return the median over steps of the sum of a rank's waits for what others send, in µs."""
    return round(
        statistics.median(
            sum(wait.end_us - wait.start_us for wait in waits if _is_from_other(rank, wait))
            for waits in steps
        )
    )


def _is_from_other(rank: int, wait: Wait) -> bool:
    moved = wait.communication
    return isinstance(moved, Transfer) and moved.target == rank and moved.source != HOST


def rehearsed_run(
    plan: Plan, lowered: Lowered, ranks: Mapping[int, RehearsedRank], *, late: bool = False
) -> MeasuredRun:
    """Simulate the plan with the median durations of the rehearsed ops, others as planned.

    Args:
        late: steps are validated later, so that iterations overlap.

    Returns:
        The simulated iteration as a run on one device per rank.
    """
    spans: list[OpSpans] = [[step] for one in ranks.values() for step in map(list, one.steps)]
    again = lower(lowered.schedule, _with_durations(lowered, spans))
    timeline = shared_timeline(again, lowered.num_ranks, late=late)
    found = [ranks.get(rank) for rank in range(lowered.num_ranks)]
    return MeasuredRun(
        step_us=[timeline.period_us if late else timeline.makespan_us],
        executions=[planned_execution(timeline)],
        peak_bytes=[None if one is None else one.peak_bytes for one in found],
        processors=lowered.num_ranks,
        late=late,
        extra_bytes=[0 if one is None else one.extra_bytes for one in found],
        ops=spans,
    )


def _with_durations(lowered: Lowered, spans: Sequence[OpSpans]) -> Costs:
    """Return the costs with the medians of ops that ran alone, and of what pairs hid.

    What ran in pairs only is longer than its turns, by as much as in the plan.
    """
    overlapped, ops = lowered.schedule.overlapped, [*chain(*lowered.ops)]
    nodes = [node + i for node in lowered.arrays.overlapped.tolist() for i in (0, 1)]
    turns = [OpSpan(ops[node], 0, lowered.durations_us[node]) for node in nodes]
    of_pairs = {span.op for span in turns}
    alone = [[[span for span in rank if span.op not in of_pairs] for rank in one] for one in spans]
    alone_us, any_us, turns_us = durations(alone), durations(spans), durations([[turns]])
    stages = [*lowered.costs.stages]
    for number, kind in any_us:
        known_us = stages[number].duration_us
        if (number, kind) in alone_us:
            us = statistics.median(alone_us[number, kind])
        else:
            turn_us = max(1, statistics.median(turns_us[number, kind]))
            us = statistics.median(any_us[number, kind]) * known_us[kind] / turn_us
        stages[number] = stages[number].replace(duration_us={**known_us, kind: round(us)})
    hidden: dict[int, list[int]] = defaultdict(list)
    for pair in (pair for one in spans for rank in one for pair in pairwise(rank)):
        if pair[0].op not in overlapped:
            continue
        apart_us = sum(stages[span.op.stage].duration_us[span.op.kind] for span in pair)
        hidden_us = apart_us - sum(span.end_us - span.start_us for span in pair)
        for stage in {span.op.stage for span in pair}:
            hidden[stage].append(hidden_us)
    for number, times in hidden.items():
        most = max(0, round(statistics.median(times)))
        stages[number] = stages[number].replace(hidden_us=most)
    return lowered.costs.replace(stages=tuple(stages))


def rehearsal_text(plan: Plan, found: RunComparison, ranks: Mapping[int, RehearsedRank]) -> str:
    """Return the comparison as a sentence and tables for the terminal."""
    parts = [
        f"predicted {format_us(found.predicted_us)}, rehearsed {format_us(found.measured_us)} "
        f"({found.paid} of the plan with the times of the rehearsed ranks)\n{_need(plan, found)}",
        memory_table(found),
        *_reserved(ranks),
        op_table(found),
    ]
    if found.difference is not None:
        parts.insert(1, difference_text(found.difference))
    return "\n\n".join(parts)


def steps_text(lowered: Lowered, ranks: Mapping[int, RehearsedRank], *, late: bool) -> str:
    """Return a table of steps with arrivals as planned: their ends and their waits.

    Ends are those of the last op but STEP, which in a run waits for all ranks.
    """
    timeline = simulate(lowered)
    planned = planned_spans(timeline)
    rows = []
    for rank, one in ranks.items():
        planned_us = _end_us(planned[rank]) - timeline.begin_us(rank, late=late)
        found_us = statistics.median(_end_us(step) for step in one.steps)
        times_us = (planned_us, found_us, one.waited_us or 0)
        rows.append((str(rank), *(f"{time_us / 1000:.3f}" for time_us in times_us)))
    head = (
        "rank", "last op ends,\nplanned, ms", "with emulated\narrivals, ms", "of it waits,\nms",
    )  # fmt: skip
    return table(head, rows)


def _end_us(spans: Sequence[OpSpan]) -> int:
    return max((span.end_us for span in spans if span.op.kind != OpKind.STEP), default=0)


def _need(plan: Plan, found: RunComparison) -> str:
    """Name the rank that has least left under its limit, or needs most without limits."""
    caps = plan.caps_bytes
    peaks = {r: peak for r, peak in enumerate(found.measured_peak_bytes) if peak is not None}
    if caps is None:
        rank = max(peaks, key=peaks.__getitem__)
        return f"rank {rank} needs {format_bytes(peaks[rank])}, the most of those rehearsed"
    rank = min(peaks, key=lambda r: caps[r] - peaks[r])
    return (
        f"rank {rank} needs {format_bytes(peaks[rank])} of its limit of {format_bytes(caps[rank])}"
    )


def _reserved(ranks: Mapping[int, RehearsedRank]) -> list[str]:
    rows = [
        (str(rank), f"{one.reserved_bytes / 1e6:.3f}", f"{one.reserved_bytes / one.peak_bytes:.3f}")
        for rank, one in ranks.items()
        if one.reserved_bytes is not None
    ]
    head = ("rank", "reserved by CUDA's allocator\nMB", "/ allocated")
    return [table(head, rows)] if rows else []
