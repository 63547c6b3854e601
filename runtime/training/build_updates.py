"""Builds the optimizer steps of a run's rank: in lock-step, or between the ops of its plan."""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerSpec
from synth.run_options.train_options import TrainOptions
from synth.schedule.files.plan_file import Plan

from ..optimize import StageSteps, StepSettings, build_flush_free_step, build_steps
from ..pipeline import Pipeline
from .delay_hooks import check_corrections, prediction_hook, settings_hook


def build_updates(
    plan: Plan, pipeline: Pipeline, options: TrainOptions, spec: OptimizerSpec
) -> StageSteps:
    """Make the optimizer steps; all ranks of the pipeline call this at the same time.

    Raises:
        SynthError: the options do not fit the plan or the optimizer.
    """
    settings = step_settings(options, options.learning_rate.peak)
    check_corrections(options.delay, plan, spec)
    if plan.versions is None:
        return build_steps(
            pipeline.updated,
            spec,
            settings,
            device=pipeline.device,
            clip_norm=options.clip_norm,
            group=pipeline.separate_group(),
            owned=pipeline.owns,
        )
    if options.accumulate > 1:
        raise SynthError(
            f"--accumulate {options.accumulate} adds up the gradients of several mini-batches; "
            f"this plan updates within one: leave it out, or run a plan that flushes"
        )
    return build_flush_free_step(
        pipeline.updated,
        spec,
        settings,
        delays=pipeline.delays,
        device=pipeline.device,
        clip_norm=options.clip_norm,
        on_update=settings_hook(options.delay, spec),
        prediction=prediction_hook(options.delay),
    )


def step_settings(options: TrainOptions, learning_rate: float) -> StepSettings:
    """The settings of a step with this learning rate."""
    settings = StepSettings(learning_rate, options.weight_decay)
    return settings if options.betas is None else replace(settings, betas=options.betas)


def predicted_stages(pipeline: Pipeline, options: TrainOptions) -> Mapping[int, nn.Module]:
    """The stages of a rank whose forwards read predicted weights, by number."""
    predict = prediction_hook(options.delay)
    if predict is None:
        return {}
    delays = pipeline.delays
    return {n: module for n, module in pipeline.updated.items() if predict(delays[n])}
