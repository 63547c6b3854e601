"""Predicted against measured: what a run says of its plan, as data and as text."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from synth.kinds import OpKind
from synth.record import Record
from synth.report.tables import table
from synth.schedule.contention import simulate_shared
from synth.schedule.file import Plan
from synth.schedule.lower import Lowered, lower
from synth.schedule.simulate import simulate
from synth.schedule.spans import Span, Spans, planned_spans


class OpComparison(Record):
    """One kind of op of one stage, medians: profiled, predicted (slowed down where ranks share
    processors) and measured."""

    stage: int
    kind: OpKind
    profiled_us: int
    predicted_us: int
    measured_us: int
    n: int


class Comparison(Record):
    """A run beside its plan.

    `predicted_us` is one iteration with a device per rank and a STEP that waits for all ranks;
    `predicted_shared_us` the same where ranks share this machine's processors, as measured.
    """

    plan: str
    processors: int
    predicted_us: int
    predicted_shared_us: int
    measured_us: int
    predicted_peak_bytes: tuple[int, ...]
    measured_peak_bytes: tuple[int, ...]
    ops: tuple[OpComparison, ...]


def compare(
    plan: Plan,
    lowered: Lowered,
    step_us: Sequence[float],
    spans: Sequence[Spans],
    peak_bytes: Sequence[int],
    processors: int,
) -> Comparison:
    """Lay measurements beside the plan.

    Args:
        plan: what was run.
        lowered: its lowered form.
        step_us: the measured iterations.
        spans: for each of them the measured ops, rank by rank.
        peak_bytes: measured, rank by rank.
        processors: how many of them the ranks shared.
    """
    synchronous = lower(lowered.schedule, lowered.costs, synchronous_step=True)
    planned = shared_plan(lowered, processors)
    return Comparison(
        plan=plan.name,
        processors=processors,
        predicted_us=simulate(synchronous).makespan_us,
        predicted_shared_us=max(span.end_us for rank in planned for span in rank),
        measured_us=round(statistics.median(step_us)) if step_us else 0,
        predicted_peak_bytes=plan.claim.peak_bytes,
        measured_peak_bytes=tuple(peak_bytes),
        ops=_compare_ops(lowered, planned, spans),
    )


def shared_plan(lowered: Lowered, processors: int) -> Spans:
    """The planned spans of one iteration on this many processors, the ranks stepping together."""
    synchronous = lower(lowered.schedule, lowered.costs, synchronous_step=True)
    if processors < lowered.num_ranks:
        return planned_spans(simulate_shared(synchronous, processors))
    return planned_spans(simulate(synchronous))


def _compare_ops(
    lowered: Lowered, planned: Spans, measured: Sequence[Spans]
) -> tuple[OpComparison, ...]:
    predicted, found = _durations([planned]), _durations(measured)
    return tuple(
        OpComparison(
            stage=stage,
            kind=kind,
            profiled_us=lowered.costs.stages[stage].duration_us[kind],
            predicted_us=round(statistics.median(predicted[stage, kind])),
            measured_us=round(statistics.median(times)),
            n=len(times),
        )
        for (stage, kind), times in sorted(
            found.items(), key=lambda item: (item[0][0], item[0][1].rank_in_chain)
        )
    )


def _durations(charts: Sequence[Spans]) -> dict[tuple[int, OpKind], list[int]]:
    """All durations of each op kind of each stage."""
    found: defaultdict[tuple[int, OpKind], list[int]] = defaultdict(list)
    for chart in charts:
        for span in (span for rank in chart for span in rank):
            found[span.op.stage, span.op.kind].append(span.end_us - span.start_us)
    return found


def comparison_text(found: Comparison) -> str:
    """The comparison as tables for the terminal."""
    return "\n\n".join((_iteration_table(found), _memory_table(found), _op_table(found)))


def _iteration_table(found: Comparison) -> str:
    num_ranks = len(found.measured_peak_bytes)
    rows = [(f"predicted, a device for each of {num_ranks} ranks", _ms(found.predicted_us), "")]
    if found.processors < num_ranks:
        sharing = f"predicted, {num_ranks} ranks sharing {found.processors} processors"
        rows.append((sharing, _ms(found.predicted_shared_us), ""))
    difference = _percent(found.measured_us, found.predicted_shared_us)
    rows.append(("measured, median", _ms(found.measured_us), difference))
    return table(("one iteration", "\nms", "measured against\npredicted, %"), rows)


def _memory_table(found: Comparison) -> str:
    rows = [
        (str(rank), _mb(said), _mb(got), _percent(got, said))
        for rank, (said, got) in enumerate(
            zip(found.predicted_peak_bytes, found.measured_peak_bytes, strict=True)
        )
    ]
    head = ("rank", "peak, predicted\nMB", "peak, measured\nMB", "difference\n%")
    return table(head, rows)


def _op_table(found: Comparison) -> str:
    rows = [
        (
            f"{op.kind}, stage {op.stage}",
            _ms(op.profiled_us),
            _ms(op.predicted_us),
            _ms(op.measured_us),
            _percent(op.measured_us, op.predicted_us),
            str(op.n),
        )
        for op in found.ops
    ]
    head = ("op", "profiled\nms", "predicted\nms", "measured\nms", "difference\n%", "n")
    return table(head, rows)


def _ms(time_us: int) -> str:
    return f"{time_us / 1000:.3f}"


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3f}"


def _percent(measured: float, predicted: float) -> str:
    return f"{(measured / predicted - 1) * 100:+.1f}" if predicted else ""


def align(results_zero_ns: Sequence[int], spans: Spans) -> Spans:
    """Shift each rank's spans to the earliest rank's zero (ranks that share a host's clock)."""
    zero = min(results_zero_ns)
    shifts = [round((own - zero) / 1000) for own in results_zero_ns]
    return [
        [Span(s.op, s.start_us + shift, s.end_us + shift) for s in rank]
        for rank, shift in zip(spans, shifts, strict=True)
    ]
