"""The work of `synth run`."""

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from synth.cli.answer.charts import ChartSet
from synth.cli.answer.output import Format, answer, is_first_process, talk, warn_of
from synth.cli.progress.line import current_line
from synth.cli.read.own_model import check_policies, read_inputs, read_model
from synth.cli.read.plans import check_runnable, load_checked
from synth.cli.run import RunRequest
from synth.errors import ExitCode, RunFailure, SynthError
from synth.profile.throughput import Throughput, throughput
from synth.records.safe_write import write_atomically
from synth.report.explain.overlay import Overlay
from synth.report.explain.run_against_plan import (
    MeasuredRun,
    RunComparison,
    compare,
    comparison_text,
    shared_timeline,
)
from synth.report.run_file import RunFile
from synth.report.text.gantt import render
from synth.run_options.emulation_options import EmulationOptions
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan
from synth.schedule.lowering.lower import Lowered
from synth.schedule.measured.rank_log import join_logs
from synth.schedule.measured.trace_file import Source, Trace, TracedStep

if TYPE_CHECKING:
    from synth.runtime.rank_result import RankResult


def work(request: RunRequest) -> None:
    request.check_files()
    checked, lowered, _ = load_checked(request.plan)
    check_runnable(checked)
    training = _with_trusted_code(checked, request)
    _check_optimizer(checked, training)
    results = _train(request.plan, checked, lowered, training)
    if results is not None:
        report(checked, lowered, results, request)


def _with_trusted_code(plan: Plan, request: RunRequest) -> TrainOptions:
    """Return the options with the addresses of all code that the user lets be imported."""
    training = request.training
    policies = plan.recompute_policies or ()
    check_policies(policies, request.trust)
    resolved = training.replace(
        inputs=read_inputs(plan.workload, training, request.trust),
        model=read_model(plan.workload, training.model, request.trust, policies),
    )
    resolved.check_source()
    return resolved


def _check_optimizer(plan: Plan, training: TrainOptions) -> None:
    """Refuse an optimizer, or corrections of late gradients, that do not fit the plan."""
    from synth.runtime.training.delay_hooks import check_corrections

    check_corrections(training.delay, plan, training.optimizer_of(plan.workload.optimizer))


def _train(
    path: Path, plan: Plan, lowered: Lowered, training: TrainOptions
) -> "list[RankResult] | None":
    from synth.runtime.training.data import load_tokens
    from synth.runtime.training.function_data import FunctionData
    from synth.runtime.world import pick_device

    pick_device(training.device)
    if training.data is not None:
        load_tokens(training.data, plan.workload.sequence_length)
    elif training.inputs is not None:
        FunctionData(
            training.inputs, plan.workload.micro_batch_size, training.seed, training.epochs
        )
    if is_first_process():
        warn_of(plan.conditions, f"profile {plan.profile_name} of this plan")
    return results_of_ranks(path, plan, lowered, training)


def results_of_ranks(
    path: Path, plan: Plan, lowered: Lowered, options: TrainOptions | EmulationOptions
) -> "list[RankResult] | None":
    """Return what all ranks of a plan's file did; None on a torchrun worker but the first."""
    from synth.runtime.training.launch import launch
    from synth.runtime.training.worker import work_inside_torchrun
    from synth.runtime.world import under_torchrun

    current_line().stop()  # the ranks print their steps
    if under_torchrun():
        return work_inside_torchrun(path, options)
    return launch(path, plan, lowered, options)


def report(plan: Plan, lowered: Lowered, results: "list[RankResult]", request: RunRequest) -> None:
    """Write the run's figures and its trace to files, and answer as text or JSON.

    Raises:
        RunFailure: training ended, but the last checkpoint failed.
        SynthError: SIGTERM ended training early.
    """
    if results[0].remark is not None:
        talk(results[0].remark)
    _show(plan, lowered, results, request)
    failed = results[0].failed_checkpoint
    if failed is not None:
        raise RunFailure(
            f"training ended, but its last checkpoint, of step {failed}, could not be written"
        )
    steps = results[0].stopped_at
    if steps is not None:
        raise stopped_after(steps)


def stopped_after(steps: int) -> SynthError:
    """Return the error of a run that SIGTERM ended early, with the exit code of that signal."""
    done = "1 step is done" if steps == 1 else f"{steps} steps are done"
    return SynthError(
        f"stopped by SIGTERM: {done} and saved; the same command with --resume continues from "
        f"there",
        ExitCode.TERMINATED,
    )


def _show(plan: Plan, lowered: Lowered, results: "list[RankResult]", request: RunRequest) -> None:
    trace = trace_of(plan, results, Source.MEASURED)
    run = _measured(trace, results)
    found = compare(plan, lowered, run)
    record = _as_json(plan, results, found)
    written = _write(request, record, trace) if results[0].losses else []
    overlay = _overlay(lowered, run, trace) if run.executions else None
    if overlay is not None:
        _draw(plan, overlay, request)
    if request.format == Format.JSON:
        answer(record.rstrip())
    elif results[0].losses:
        _show_text(plan, results, found, overlay, request.width)
        for path in written:
            talk(f"written: {path}")


def _measured(trace: Trace, results: "list[RankResult]") -> MeasuredRun:
    first = results[0]
    return MeasuredRun(
        iterations_us(trace, results) or [seconds * 1e6 for seconds in first.program_seconds],
        [step.execution() for step in trace.steps],
        [result.peak_bytes for result in results],
        first.processors,
        late=first.late,
        extra_bytes=[result.extra_bytes for result in results],
        in_order=not first.early_ops,
        waiting_shares=[result.waiting_share for result in results],
    )


def _overlay(lowered: Lowered, run: MeasuredRun, trace: Trace) -> Overlay:
    """Lay the median step over the plan."""
    return Overlay(
        shared_timeline(lowered, run.processors, late=run.late),
        run.executions[run.middle],
        Source.MEASURED,
        trace.steps[run.middle].step,
        late=run.late,
    )


def _draw(plan: Plan, overlay: Overlay, request: RunRequest) -> None:
    charts = ChartSet.of(plan, overlay)
    if request.html is not None:
        charts.write_page(request.html)
    charts.write_pictures(request.pictures)


def _show_text(
    plan: Plan,
    results: "list[RankResult]",
    found: RunComparison,
    overlay: Overlay | None,
    width: int | None,
) -> None:
    answer(_loss_curve(results[0].losses, results[0].first_step))
    speed = run_throughput(plan, results[0]).words
    if speed:
        answer(f"median step, all ranks together: {speed}\n")
    if overlay is None or overlay.measured is None:
        talk("no step was timed: the first two warm up and measure memory; give --steps 3 or more")
        return
    answer(render(overlay.planned.ops, measured=overlay.measured.ops, width=width) + "\n")
    answer(comparison_text(found) + early_ops_text(results))


def early_ops_text(results: "list[RankResult]") -> str:
    """Return the number of ops that ran early in the median step; empty without look-ahead."""
    steps = list(zip(*(result.early_ops for result in results), strict=True))
    if not steps:
        return ""
    early = round(statistics.median(map(sum, steps)))
    return f"\n\nops that ran early in the median step (--look-ahead): {early}"


def _write(request: RunRequest, record: str, trace: Trace) -> list[Path]:
    """Write the files asked for and return their paths."""
    if request.trace is not None:
        trace.save(request.trace)
    if request.output is not None:
        write_atomically(request.output, record)
    return [path for path in (request.output, request.trace) if path is not None]


def run_throughput(plan: Plan, result: "RankResult") -> Throughput:
    """Return the throughput of all ranks in the median step.

    The first two steps, which warm up and measure memory, do not count.
    """
    timed = result.step_seconds[2:]
    per_s = 1 / statistics.median(timed) if timed else None
    micro_batches = result.tokens_per_step // plan.workload.tokens
    return throughput(per_s, micro_batches, plan.num_ranks * result.num_pipelines, plan)


def trace_of(plan: Plan, results: "list[RankResult]", source: Source, times: float = 1.0) -> Trace:
    """Merge the ranks' logs of the traced steps into one trace."""
    by_step = zip(*(result.traced for result in results), strict=True)
    steps = []
    for ranks in by_step:
        execution = join_logs([seen.log for seen in ranks])
        step_us = max(ranks[0].step_us, *(span.end_us for spans in execution.ops for span in spans))
        steps.append(TracedStep.of(execution, ranks[0].step, step_us))
    return Trace.of(plan, source, steps, results[0].processors, times, results[0].late)


def iterations_us(trace: Trace, results: "list[RankResult]") -> list[float]:
    """Return the time of each traced iteration.

    If iterations overlap, it is the time from one end of a step to the next on a rank, because an
    iteration ends only after the next one has begun.
    """
    if results[0].late:
        return [seen.step_us for seen in results[0].traced]
    return [step.step_us for step in trace.steps]


def _as_json(plan: Plan, results: "list[RankResult]", found: RunComparison) -> str:
    first, speed = results[0], run_throughput(plan, results[0])
    return RunFile(
        plan=plan.name,
        profile=plan.profile_name,
        conditions=plan.conditions,
        data_parallel=first.num_pipelines,
        devices=tuple(r.device for r in results),
        first_step=first.first_step,
        losses=tuple(first.losses),
        step_seconds=tuple(first.step_seconds),
        tokens_per_second=speed.per_s,
        mfu=speed.mfu,
        static_bytes=tuple(r.static_bytes for r in results),
        comparison=found,
    ).to_json()


def _loss_curve(losses: list[float], first_step: int, columns: int = 60) -> str:
    """Return the losses as a sparkline, with the first and the last value."""
    bars = "▁▂▃▄▅▆▇█"
    low, high = min(losses), max(losses)
    picked = [losses[i * len(losses) // columns] for i in range(columns)]
    shown = picked if len(losses) > columns else losses
    line = "".join(bars[round((x - low) / (high - low or 1) * 7)] for x in shown)
    return f"loss {losses[0]:.4f} {line} {losses[-1]:.4f} after {first_step + len(losses)} steps\n"
