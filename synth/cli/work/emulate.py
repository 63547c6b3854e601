"""The work of `synth emulate`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from synth.cli.answer.output import Format, answer, answer_json, talk
from synth.cli.emulate import EmulateRequest
from synth.cli.read.plans import load_checked, plan_estimate_lines
from synth.cli.run import refuse_charts
from synth.cli.work.run import early_ops_text, iterations_us, results_of_ranks, trace_of
from synth.report.explain.run_against_plan import (
    MeasuredRun,
    compare,
    comparison_text,
    shared_timeline,
)
from synth.report.text.gantt import render
from synth.schedule.files.plan_file import Plan
from synth.schedule.files.scaled import moved_bytes, scaled
from synth.schedule.lowering.lower import Lowered
from synth.schedule.measured.execution_trace import planned_spans
from synth.schedule.measured.trace_file import Source, Trace
from synth.system.processors import num_processors
from synth.units import format_bytes

if TYPE_CHECKING:
    from synth.runtime.rank_result import RankResult

# Bytes per second that loopback transfers without delaying much else.
_LOOPBACK_BYTES_PER_S = 500e6

# The slowdown above which a run shows little.
_TOO_SLOW = 1.5

_LABEL = (
    "EMULATED DEVICES: each op sleeps for the profile's time and computes nothing; memory is "
    "allocated, not touched. Processes, order, transfers and waits are real."
)


_LEFT_OUT = (
    "reductions of gradients among the devices of a rank, which the predicted times have and the "
    "measured ones do not"
)


def work(request: EmulateRequest) -> None:
    from synth.runtime.emulation.emulated_rank import check_replayable

    request.check_files(request.plan)
    refuse_charts(request.emulation.look_ahead, request.trace)
    checked, lowered, _ = load_checked(request.plan)
    checked.check_executable()
    sizes = request.sizes
    asked = scaled(checked, times=request.times, sizes=1.0 if sizes is None else sizes)
    if sizes is None:
        asked = scaled(asked, sizes=_sizes_that_can_be_moved(lowered, asked.claim.makespan_us))
    lowered, _ = asked.check()
    options = request.emulation.replace(caps_bytes=asked.caps_bytes)
    check_replayable(lowered, options)  # before processes start
    with tempfile.TemporaryDirectory(prefix="synth-emulate-") as folder:
        path = Path(folder) / "plan.json"
        asked.save(path)
        results = results_of_ranks(path, asked, lowered, options)
    if results is not None:
        made = trace_of(asked, results, Source.EMULATED, request.times)
        if request.trace is not None:
            made.save(request.trace)
            talk(f"written: {request.trace}")
        _report(asked, lowered, results, made, request)


def _sizes_that_can_be_moved(lowered: Lowered, makespan_us: float) -> float:
    """Return 1, or the power of ten with which loopback keeps up; a message says so."""
    moved, sizes = moved_bytes(lowered), 1.0
    while moved * sizes > _LOOPBACK_BYTES_PER_S * makespan_us / 1e6 and sizes > 1e-6:
        sizes /= 10
    if sizes < 1:
        talk(
            f"one iteration moves {format_bytes(moved)}, more than processes of one machine can "
            f"pass on in its time: all sizes are multiplied by {sizes:g} (--sizes 1 keeps them)"
        )
    return sizes


def _report(
    plan: Plan, lowered: Lowered, results: "list[RankResult]", trace: Trace, request: EmulateRequest
) -> None:
    run = MeasuredRun(
        iterations_us(trace, results),
        [step.execution() for step in trace.steps],
        [result.peak_bytes for result in results],
        plan.num_ranks,
        late=results[0].late,
        in_order=not results[0].early_ops,
        waiting_shares=[result.waiting_share for result in results],
    )
    found = compare(plan, lowered, run)
    left_out = _LEFT_OUT if lowered.reductions_within_ranks else None
    if request.format == Format.JSON:
        told = {"emulated": True, "left_out": left_out}
        answer_json({**told, **found.model_dump(mode="json")})
        return
    more = [f"left out: {left_out}"] if left_out else []
    answer("\n".join([_LABEL, *plan_estimate_lines(plan)[:1], *more, ""]))
    if found.measured_us > _TOO_SLOW * found.predicted_us:
        talk(
            f"warning: an iteration took {found.measured_us / found.predicted_us:.1f} times what "
            f"was predicted: {num_processors()} processors cannot keep up with {plan.num_ranks} "
            f"ranks; give --sizes 0.01 for smaller transfers, or --times 10 for slower devices"
        )
    planned = planned_spans(shared_timeline(lowered, plan.num_ranks, late=run.late))
    measured = run.executions[run.middle].ops
    answer(render(planned, measured=measured, width=request.width) + "\n")
    answer(comparison_text(found) + early_ops_text(results))
