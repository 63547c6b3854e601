"""Predicted against measured: what a run says of its plan, as data and as text."""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from synth.kinds import OpKind
from synth.record import Record
from synth.schedule.contention import simulate_shared
from synth.schedule.file import Plan
from synth.schedule.lower import Lowered, lower
from synth.schedule.simulate import simulate
from synth.schedule.spans import Span, Spans, planned_spans
from synth.units import format_bytes, format_us


class OpComparison(Record):
    """One kind of op of one stage: microseconds, profiled and measured (median over the run)."""

    stage: int
    kind: OpKind
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
    alone = simulate(synchronous).makespan_us
    shared = alone
    if processors < lowered.num_ranks:
        shared = simulate_shared(synchronous, processors).makespan_us
    return Comparison(
        plan=plan.name,
        processors=processors,
        predicted_us=alone,
        predicted_shared_us=shared,
        measured_us=round(statistics.median(step_us)) if step_us else 0,
        predicted_peak_bytes=plan.claim.peak_bytes,
        measured_peak_bytes=tuple(peak_bytes),
        ops=_compare_ops(lowered, spans),
    )


def shared_plan(lowered: Lowered, processors: int) -> Spans:
    """The planned spans on this many processors, for a picture beside the measured ones."""
    synchronous = lower(lowered.schedule, lowered.costs, synchronous_step=True)
    if processors < lowered.num_ranks:
        return planned_spans(simulate_shared(synchronous, processors))
    return planned_spans(simulate(synchronous))


def _compare_ops(lowered: Lowered, spans: Sequence[Spans]) -> tuple[OpComparison, ...]:
    measured: defaultdict[tuple[int, OpKind], list[int]] = defaultdict(list)
    for step in spans:
        for rank in step:
            for span in rank:
                measured[span.op.stage, span.op.kind].append(span.end_us - span.start_us)
    return tuple(
        OpComparison(
            stage=stage,
            kind=kind,
            predicted_us=lowered.costs.stages[stage].duration_us[kind],
            measured_us=round(statistics.median(times)),
            n=len(times),
        )
        for (stage, kind), times in sorted(
            measured.items(), key=lambda item: (item[0][0], item[0][1].rank_in_chain)
        )
    )


def comparison_text(found: Comparison) -> str:
    """The comparison as a text for the terminal."""
    num_ranks = len(found.measured_peak_bytes)
    lines = [
        "one iteration                                     seconds",
        f"  predicted, a device for each of {num_ranks:2d} ranks     {found.predicted_us / 1e6:10.4f}",
    ]
    if found.processors < num_ranks:
        lines.append(
            f"  predicted, {num_ranks} ranks sharing {found.processors:2d} processors"
            f"{found.predicted_shared_us / 1e6:14.4f}"
        )
    lines += [
        f"  measured (median)                          {found.measured_us / 1e6:10.4f}   "
        f"{_percent(found.measured_us, found.predicted_shared_us)} against predicted",
        "",
        "rank  peak memory  predicted      measured     difference",
    ]
    for rank, (said, got) in enumerate(
        zip(found.predicted_peak_bytes, found.measured_peak_bytes, strict=True)
    ):
        lines.append(
            f"{rank:4d}  {'':11s}{format_bytes(said):>11s}{format_bytes(got):>14s}"
            f"{_percent(got, said):>15s}"
        )
    lines += ["", "op         profiled      measured     difference     n"]
    for op in found.ops:
        name = f"{op.kind}{op.stage}"
        lines.append(
            f"{name:7s}{format_us(op.predicted_us):>12s}{format_us(op.measured_us):>14s}"
            f"{_percent(op.measured_us, op.predicted_us):>15s}{op.n:6d}"
        )
    return "\n".join(lines)


def _percent(measured: float, predicted: float) -> str:
    return f"{(measured / predicted - 1) * 100:+.1f} %" if predicted else "—"


def align(results_zero_ns: Sequence[int], spans: Spans) -> Spans:
    """Shift each rank's spans to the earliest rank's zero (ranks that share a host's clock)."""
    zero = min(results_zero_ns)
    shifts = [round((own - zero) / 1000) for own in results_zero_ns]
    return [
        [Span(s.op, s.start_us + shift, s.end_us + shift) for s in rank]
        for rank, shift in zip(spans, shifts, strict=True)
    ]
