"""`synth run`: train under a plan on real devices, and lay the measurement beside the plan."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.output import Format, FormatOption, answer, talk
from synth.errors import SynthError
from synth.record import check_writable, write_atomically

if TYPE_CHECKING:
    from synth.report.comparison import Comparison
    from synth.runtime.trainer import RankResult, TrainOptions
    from synth.schedule.file import Plan
    from synth.schedule.lower import Lowered


def command(
    plan: Annotated[Path, typer.Argument(help="A schedule file made by `synth solve`.")],
    data: Annotated[
        Path,
        typer.Option(help="Text file, folder of text files (bytes are tokens), or .npy of ids."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the run's figures here as JSON.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 20,
    lr: Annotated[float, typer.Option(min=0, max=1e6, help="AdamW's learning rate.")] = 1e-3,
    clip: Annotated[
        float, typer.Option(min=0, max=1e30, help="Clip to this global gradient norm; 0: never.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Of the weights and of the data's order.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a silent rank counts as dead.")
    ] = 300.0,
    width: Annotated[int | None, typer.Option(min=40, help="Columns of the picture.")] = None,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Train under PLAN: start one process per rank, or be one of them inside torchrun."""
    from synth.schedule.file import Plan

    checked = Plan.load(plan)
    lowered, _ = checked.check()
    _check_runnable(checked, output)
    from synth.runtime.trainer import TrainOptions

    options = TrainOptions(
        data=data,
        steps=steps,
        learning_rate=lr,
        clip_norm=clip or None,
        seed=seed,
        device=device,
        timeout_s=timeout,
    )
    results = _train(plan, checked, lowered, options)
    if results is not None:
        _report(checked, lowered, results, output, output_format, width)


def _check_runnable(plan: "Plan", output: Path | None) -> None:
    if not plan.workload.runnable:
        raise SynthError(
            f"plan {plan.name!r} is for {plan.profile_name!r}, a published profile without a model "
            f"to run; profile a model of yours with `synth profile` and solve that"
        )
    if len(plan.placement) > 1:
        raise SynthError(
            f"plan {plan.name!r} holds {len(plan.placement)} replicas of the stages; summing their "
            f"gradients is not there yet, so only plans with one replica run"
        )
    if output is not None:
        check_writable(output)


def _train(
    path: Path, plan: "Plan", lowered: "Lowered", options: "TrainOptions"
) -> "list[RankResult] | None":
    """All ranks' results; none on a torchrun worker that is not the first."""
    from synth.runtime.data import load_tokens
    from synth.runtime.launch import launch
    from synth.runtime.worker import work_inside_torchrun
    from synth.runtime.world import pick_device, under_torchrun

    pick_device(options.device)
    load_tokens(options.data, plan.workload.sequence_length)
    if under_torchrun():
        results: list[RankResult] | None = work_inside_torchrun(path, options)
    else:
        results = launch(path, plan, lowered, options)
    return results


def _report(
    plan: "Plan",
    lowered: "Lowered",
    results: "list[RankResult]",
    output: Path | None,
    output_format: Format,
    width: int | None,
) -> None:
    from synth.report.comparison import align, compare, comparison_text, shared_plan
    from synth.report.gantt import render

    timed = len(results[0].spans)
    steps = [
        align([r.zero_ns[i] for r in results], [r.spans[i] for r in results]) for i in range(timed)
    ]
    seconds = results[0].step_seconds[-timed:] if timed else results[0].step_seconds
    found = compare(
        plan,
        lowered,
        [s * 1e6 for s in seconds],
        steps,
        [r.peak_bytes for r in results],
        results[0].processors,
    )
    record = _as_json(plan, results, found)
    if output is not None:
        write_atomically(output, record)
    if output_format == Format.JSON:
        answer(record.rstrip())
        return
    answer(_loss_curve(results[0].losses))
    if timed:
        middle = sorted(range(timed), key=seconds.__getitem__)[timed // 2]
        planned = shared_plan(lowered, found.processors)
        answer(render(planned, measured=steps[middle], width=width) + "\n")
        answer(comparison_text(found))
    else:
        talk("no step was timed: the first two warm up and measure memory; give --steps 3 or more")
    if output is not None:
        talk(f"written: {output}")


def _as_json(plan: "Plan", results: "list[RankResult]", found: "Comparison") -> str:
    body = {
        "format": "synth-run",
        "schema_version": 1,
        "plan": plan.name,
        "profile": plan.profile_name,
        "devices": [r.device for r in results],
        "losses": results[0].losses,
        "step_seconds": results[0].step_seconds,
        "static_bytes": [r.static_bytes for r in results],
        "comparison": found.model_dump(mode="json"),
    }
    return json.dumps(body, indent=1) + "\n"


def _loss_curve(losses: list[float], columns: int = 60) -> str:
    """The loss as a line of eighths, first and last value beside it."""
    bars = "▁▂▃▄▅▆▇█"
    low, high = min(losses), max(losses)
    picked = [losses[i * len(losses) // columns] for i in range(columns)]
    shown = picked if len(losses) > columns else losses
    line = "".join(bars[round((x - low) / (high - low or 1) * 7)] for x in shown)
    return f"loss {losses[0]:.4f} {line} {losses[-1]:.4f} after {len(losses)} steps\n"
