"""`synth run`: train under a plan on real devices, and lay the measurement beside the plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.output import Format, FormatOption
from synth.cli.run_answer import report
from synth.errors import SynthError
from synth.record import check_writable

if TYPE_CHECKING:
    from synth.runtime.rank_result import RankResult
    from synth.runtime.train_options import TrainOptions
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
    from synth.runtime.train_options import TrainOptions

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
        report(checked, lowered, results, output, output_format, width)


def _check_runnable(plan: "Plan", output: Path | None) -> None:
    if not plan.workload.runnable:
        raise SynthError(
            f"plan {plan.name!r} is for {plan.profile_name!r}, a published profile without a model "
            f"to run; profile a model of yours with `synth profile` and solve that"
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
