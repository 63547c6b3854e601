"""Comparison of a measured run with its plan, as data and as text."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from synth.op_kinds import VISITS, OpKind
from synth.records.record import Record
from synth.report.explain.difference import Difference, difference_text, explain_difference
from synth.report.explain.overlapping import explain_overlapping
from synth.report.text.tables import table
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered, lower
from synth.schedule.measured.execution_trace import ExecutionTrace, OpSpans, planned_spans
from synth.schedule.processor_sharing import shared_period_us, simulate_shared
from synth.schedule.simulate import Timeline, simulate
from synth.system.processor_waits import WORTH_TELLING


class OpComparison(Record):
    """Median times of a kind of op of a stage: profiled, predicted and measured.

    Predicted ops are slowed down if ranks share processors.
    """

    stage: int
    kind: OpKind
    profiled_us: int
    predicted_us: int
    measured_us: int
    n: int


class RunComparison(Record):
    """Comparison of a run with its plan.

    `predicted_us` is one iteration with one device per rank: the makespan with a STEP that waits
    for all ranks, or the period with post-validation, as `paid` says. `predicted_shared_us` is the
    same with ranks that share this machine's processors. `measured_p10_us` and `measured_p90_us`
    are percentiles over iterations, and `difference` explains the median one. Peaks are by rank;
    None: this rank was not rehearsed. `waiting_shares` are the shares of the timed steps in which a
    rank had no processor, as other programs had them; None: unknown.
    """

    plan: str
    processors: int
    paid: Literal["makespan", "period"] = "makespan"
    predicted_us: int
    predicted_shared_us: int
    measured_us: int
    measured_p10_us: int
    measured_p90_us: int
    predicted_peak_bytes: tuple[int, ...]
    measured_peak_bytes: tuple[int | None, ...]
    ops: tuple[OpComparison, ...]
    difference: Difference | None = None
    waiting_shares: tuple[float | None, ...] | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """The measurements of a run that its comparison with the plan reads.

    Attributes:
        step_us: the measured iterations.
        executions: the traces of the timed iterations.
        peak_bytes: rank by rank; None: not measured.
        processors: number of processors that the ranks shared.
        late: steps were validated later, so ranks did not wait for each other.
        extra_bytes: memory of each rank's optimizer beyond that in the plan; None: none.
        in_order: False if ranks looked ahead: the difference is not taken apart then, as the
            critical path is that of the plan's order.
        waiting_shares: see `RunComparison`, rank by rank; None: not measured.
        ops: the measured spans, if the executions are simulated with their durations; None: those
            of the executions.
    """

    step_us: Sequence[float]
    executions: Sequence[ExecutionTrace]
    peak_bytes: Sequence[int | None]
    processors: int
    late: bool = False
    extra_bytes: Sequence[int] | None = None
    in_order: bool = True
    waiting_shares: Sequence[float | None] | None = None
    ops: Sequence[OpSpans] | None = None

    @property
    def middle(self) -> int:
        """The index of the iteration whose time is the measured median; 0 if there is none."""
        return middle_step(self.step_us)


def compare(plan: Plan, lowered: Lowered, run: MeasuredRun) -> RunComparison:
    """Compare a run with its plan, whose lowered form is given."""
    shared = shared_timeline(lowered, run.processors, late=run.late)
    predicted_us, predicted_shared_us = _predict(lowered, shared, run)
    extra_bytes = run.extra_bytes or [0] * lowered.num_ranks
    measured = [one.ops for one in run.executions] if run.ops is None else run.ops
    return RunComparison(
        plan=plan.name,
        processors=run.processors,
        paid="period" if run.late else "makespan",
        predicted_us=predicted_us,
        predicted_shared_us=predicted_shared_us,
        measured_us=round(run.step_us[run.middle]) if run.step_us else 0,
        measured_p10_us=_quantile(run.step_us, 0.1),
        measured_p90_us=_quantile(run.step_us, 0.9),
        predicted_peak_bytes=tuple(map(sum, zip(plan.claim.peak_bytes, extra_bytes, strict=True))),
        measured_peak_bytes=tuple(run.peak_bytes),
        ops=_compare_ops(lowered, planned_spans(shared), measured),
        difference=_explain(shared, run, predicted_shared_us),
        waiting_shares=None if run.waiting_shares is None else tuple(run.waiting_shares),
    )


def _explain(planned: Timeline, run: MeasuredRun, predicted_us: int) -> Difference | None:
    """Return the causes of the difference; None if there is no trace, or in another order."""
    if not run.executions or not run.in_order:
        return None
    middle, measured_us = run.middle, run.step_us[run.middle]
    if run.late:
        return explain_overlapping(planned, run.executions, middle, measured_us, predicted_us)
    return explain_difference(planned, run.executions, middle, measured_us)


def _predict(lowered: Lowered, shared: Timeline, run: MeasuredRun) -> tuple[int, int]:
    """Return an iteration's time with one device per rank, and with these processors."""
    own = shared_timeline(lowered, lowered.num_ranks, late=run.late)
    if not run.late:
        return own.makespan_us, max(shared.end_us[: lowered.first_node[-1]])
    if run.processors >= lowered.num_ranks:
        return own.period_us, own.period_us
    return own.period_us, shared_period_us(lowered, run.processors)


def middle_step(step_us: Sequence[float]) -> int:
    """Return the index of the iteration whose time is the measured median; 0 if there is none."""
    by_time = sorted(range(len(step_us)), key=step_us.__getitem__)
    return by_time[_nearest_rank(len(step_us), 0.5)] if step_us else 0


def _quantile(step_us: Sequence[float], share: float) -> int:
    """Return the quantile, as the nearest of the measured times."""
    return round(sorted(step_us)[_nearest_rank(len(step_us), share)]) if step_us else 0


def _nearest_rank(count: int, share: float) -> int:
    return round(share * (count - 1))


def shared_timeline(lowered: Lowered, processors: int, *, late: bool = False) -> Timeline:
    """Simulate one iteration on this many processors.

    Ranks step together or, with post-validation, each as soon as it can.
    """
    iteration = lowered
    if not late:
        iteration = lower(lowered.schedule, lowered.costs, synchronous_step=True)
    if processors < lowered.num_ranks:
        return simulate_shared(iteration, processors)
    return simulate(iteration)


def _compare_ops(
    lowered: Lowered, planned: OpSpans, measured: Sequence[OpSpans]
) -> tuple[OpComparison, ...]:
    predicted, found = durations([planned]), durations(measured)
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


def durations(executions: Sequence[OpSpans]) -> dict[tuple[int, OpKind], list[int]]:
    """Return all durations of each op kind of each stage."""
    found: defaultdict[tuple[int, OpKind], list[int]] = defaultdict(list)
    for execution in executions:
        for span in (span for rank in execution for span in rank):
            if span.op.kind not in VISITS:  # which only mark where weights come and go
                found[span.op.stage, span.op.kind].append(span.end_us - span.start_us)
    return found


def comparison_text(found: RunComparison) -> str:
    """Return the comparison as tables for the terminal."""
    tables = [_iteration_table(found) + _busy_line(found), memory_table(found), op_table(found)]
    if found.difference is not None:
        tables.insert(1, difference_text(found.difference))
    return "\n\n".join(tables)


def _iteration_table(found: RunComparison) -> str:
    num_ranks = len(found.measured_peak_bytes)
    whole = f"predicted ({found.paid}), one device per rank"
    rows = [(whole, _ms(found.predicted_us), "")]
    if found.processors < num_ranks:
        sharing = (
            f"predicted ({found.paid}), {num_ranks} ranks sharing {found.processors} processors"
        )
        rows.append((sharing, _ms(found.predicted_shared_us), ""))
    difference = _percent(found.measured_us, found.predicted_shared_us)
    rows.append(("measured, median", _ms(found.measured_us), difference))
    rows.append(("measured, p10", _ms(found.measured_p10_us), ""))
    rows.append(("measured, p90", _ms(found.measured_p90_us), ""))
    return table(("one iteration", "\nms", "measured against\npredicted, %"), rows)


def _busy_line(found: RunComparison) -> str:
    """Return a line on the rank that waited most for a processor; empty if none did."""
    shares = [share or 0.0 for share in found.waiting_shares or ()]
    most = max(shares, default=0.0)
    if most <= WORTH_TELLING:
        return ""
    return (
        f"\nbusy machine: rank {shares.index(most)} waited {100 * most:.0f} % of these steps for a "
        f"processor that other programs had; measure on a quiet one"
    )


def memory_table(found: RunComparison) -> str:
    """Return the peaks of the ranks that were measured."""
    rows = [
        (str(rank), _mb(said), _mb(got), _percent(got, said))
        for rank, (said, got) in enumerate(
            zip(found.predicted_peak_bytes, found.measured_peak_bytes, strict=True)
        )
        if got is not None
    ]
    head = ("rank", "peak, predicted\nMB", "peak, measured\nMB", "difference\n%")
    return table(head, rows)


def op_table(found: RunComparison) -> str:
    """Return the times of each kind of op of each stage."""
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
