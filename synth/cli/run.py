"""`synth run`: train under a plan on real devices, and compare measurement and plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.answer.output import Format, FormatOption, is_first_process, warn_of
from synth.cli.answer.run import Outputs, report
from synth.cli.progress.line import current_line
from synth.cli.read import run_checkpoints as saved
from synth.cli.read import run_options as options
from synth.cli.read.optimizer import read_optimizer
from synth.cli.read.options import ChartWidthOption, ForceOption
from synth.cli.read.own_model import ModelOption, TrustOption, read_inputs, read_model
from synth.cli.read.pictures import PictureOption, check_pictures
from synth.cli.read.plans import load_checked
from synth.errors import SynthError
from synth.overwrite_guard import PAGE, RUN, TRACE, check_replaceable
from synth.record import check_outputs

if TYPE_CHECKING:
    from synth.runtime.training.rank_result import RankResult
    from synth.runtime.training.train_options import TrainOptions
    from synth.schedule.files.plan_file import Plan
    from synth.schedule.lowering.lower import Lowered


def command(
    plan: Annotated[Path, typer.Argument(help="Plan file of `synth solve`.")],
    data: options.DataOption = None,
    inputs: options.InputsOption = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write losses and times of the run here, as JSON."),
    ] = None,
    model: ModelOption = None,
    trust: TrustOption = False,
    steps: options.StepsOption = None,
    epochs: options.EpochsOption = None,
    data_parallel: options.DataParallelOption = 1,
    accumulate: options.AccumulateOption = 1,
    optimizer: options.OptimizerOption = None,
    master_weights: options.MasterWeightsOption = False,
    float32_gradients: options.Float32GradientsOption = False,
    post_validation: options.PostValidationOption = False,
    look_ahead: options.LookAheadOption = 0,
    lr: options.LrOption = 1e-3,
    schedule: options.DecayOption = "constant",
    warmup_steps: options.WarmupOption = 0,
    min_lr: options.MinLrOption = 0.0,
    weight_decay: options.WeightDecayOption = 0.0,
    betas: options.BetasOption = None,
    clip: options.ClipOption = 1.0,
    lr_rescheduling: options.LrReschedulingOption = None,
    async_nesterov: options.AsyncNesterovOption = False,
    weight_prediction: options.WeightPredictionOption = False,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    checkpoint: saved.CheckpointOption = None,
    checkpoint_every: saved.CheckpointEveryOption = None,
    checkpoint_keep: saved.KeepOption = None,
    resume: saved.ResumeOption = False,
    resume_from: saved.ResumeFromOption = None,
    ignore_data: saved.IgnoreDataOption = False,
    ignore_optimizer: saved.IgnoreOptimizerOption = False,
    restarts: options.RestartsOption = 0,
    timeout: options.TimeoutOption = 300.0,
    patience: options.PatienceOption = 120.0,
    trace: options.TraceOption = None,
    trace_every: options.TraceEveryOption = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write charts of the plan and of the median step here, as one page for a browser."
        ),
    ] = None,
    picture: PictureOption = None,
    width: ChartWidthOption = None,
    force: ForceOption = False,
    output_format: FormatOption = Format.TEXT,
) -> None:
    """Train under PLAN: launch one process per rank, or run as a worker under torchrun."""
    named = [given.rpartition(":")[0] or None for given in (model, inputs) if given is not None]
    pictures = picture or []
    check_outputs(output, trace, html, *pictures, inputs=[plan, data, *named])
    check_replaceable(output, RUN, "-o", force)
    check_replaceable(trace, TRACE, "--trace", force)
    check_replaceable(html, PAGE, "--html", force)
    check_pictures(pictures, force)
    options.refuse_charts(look_ahead, trace, html, *pictures)
    checked, lowered, _ = load_checked(plan)
    _check_runnable(checked)
    from synth.runtime.training.delay_options import DelayOptions
    from synth.runtime.training.train_options import TrainOptions

    made_by = read_inputs(checked.workload, data, inputs, trust)
    stepped_by = read_optimizer(
        optimizer or str(checked.workload.optimizer),
        master_weights=master_weights,
        float32_gradients=float32_gradients,
        post_validation=post_validation,
    )
    delay = DelayOptions(
        lr_rescheduling=lr_rescheduling,
        async_nesterov=async_nesterov,
        weight_prediction=weight_prediction,
    )
    delay.check(checked, stepped_by)
    chosen = TrainOptions(
        data=data,
        inputs=made_by,
        steps=steps,
        epochs=epochs,
        data_parallel=data_parallel,
        accumulate=accumulate,
        optimizer=stepped_by,
        look_ahead=look_ahead,
        learning_rate=options.learning_rate(lr, schedule, warmup_steps, min_lr),
        weight_decay=weight_decay,
        betas=options.betas(betas, stepped_by),
        delay=delay,
        clip_norm=clip or None,
        seed=seed,
        device=device,
        timeout_s=timeout,
        patience_s=patience,
        trace_every=options.traced_steps(trace, trace_every),
        checkpoint=saved.checkpoints(
            checkpoint,
            checkpoint_every,
            checkpoint_keep,
            saved.Resuming(resume, resume_from, ignore_data, ignore_optimizer),
            restarts,
        ),
        restarts=restarts,
        model=read_model(checked.workload, model, trust),
    )
    results = _train(plan, checked, lowered, chosen)
    if results is not None:
        outputs = Outputs(output, trace, html, pictures, output_format, width)
        report(checked, lowered, results, outputs)


def _check_runnable(plan: "Plan") -> None:
    if not plan.workload.runnable:
        raise SynthError(
            f"plan {plan.name!r} is for {plan.profile_name!r}, a published profile without a model "
            f"to run; profile a model of yours with `synth profile` and solve that"
        )


def _train(
    path: Path, plan: "Plan", lowered: "Lowered", chosen: "TrainOptions"
) -> "list[RankResult] | None":
    """Return all ranks' results; None on a torchrun worker that is not the first."""
    from synth.runtime.training.data import load_tokens
    from synth.runtime.training.function_data import FunctionData
    from synth.runtime.training.launch import launch
    from synth.runtime.training.worker import work_inside_torchrun
    from synth.runtime.world import pick_device, under_torchrun

    pick_device(chosen.device)
    if chosen.data is not None:
        load_tokens(chosen.data, plan.workload.sequence_length)
    elif chosen.inputs is not None:
        FunctionData(chosen.inputs, plan.workload.micro_batch_size, chosen.seed, chosen.epochs)
    if is_first_process():
        warn_of(plan.conditions, f"profile {plan.profile_name} of this plan")
    current_line().stop()  # the ranks print their steps
    if under_torchrun():
        results: list[RankResult] | None = work_inside_torchrun(path, chosen)
    else:
        results = launch(path, plan, lowered, chosen)
    return results
