"""Corrections of late gradients, as the options of a run choose them; by default there are none."""

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.profile.optimizer import OptimizerKind, OptimizerSpec
from synth.run_options.delay_options import DelayOptions
from synth.schedule.files.plan_file import Plan

from ..optimize.delay_corrections import (
    DelayedRate,
    NesterovLookAhead,
    OnUpdate,
    Prediction,
    StageUpdate,
    check_predictable,
    predict_by_delay,
)
from ..optimize.settings import StepSettings


def check_corrections(options: DelayOptions, plan: Plan, spec: OptimizerSpec) -> None:
    """Refuse corrections that a run would not follow, or that contradict each other."""
    if not str(options):
        return
    if plan.versions is None:
        raise SynthError(
            f"{options}: for late gradients, and plan {plan.name!r} flushes the pipeline before "
            f"each update, so that none is late; leave it out, or run a plan without a flush, "
            f"such as pipedream or 2bw"
        )
    if options.async_nesterov and options.weight_prediction:
        raise SynthError(
            "--async-nesterov and --weight-prediction both look ahead by the momentum; leave "
            "one of them out"
        )
    if options.async_nesterov and not (spec.kind == OptimizerKind.SGD and spec.momentum):
        raise SynthError(
            f"--async-nesterov is for sgd with momentum, and the optimizer is {spec}; give "
            f"--optimizer sgd:0.9, or leave it out"
        )
    if options.weight_prediction:
        check_predictable(spec)
        _check_runs_forwards_once(plan)


def settings_hook(options: DelayOptions, spec: OptimizerSpec) -> OnUpdate | None:
    """The hook that changes the settings of an update; None: nothing changes them.

    See `NesterovLookAhead` and `DelayedRate`.
    """
    hooks: list[OnUpdate] = []
    if options.async_nesterov:
        hooks.append(NesterovLookAhead(spec.momentum))
    if options.lr_rescheduling is not None:
        hooks.append(DelayedRate(options.lr_rescheduling))
    if not hooks:
        return None

    def change(update: StageUpdate, settings: StepSettings) -> StepSettings:
        for hook in hooks:
            settings = hook(update, settings)
        return settings

    return change


def prediction_hook(options: DelayOptions) -> Prediction | None:
    """The hook that predicts weights; None: forwards read them as they are."""
    return predict_by_delay if options.weight_prediction else None


def _check_runs_forwards_once(plan: Plan) -> None:
    """Refuse predicted weights where a forward runs again, when the prediction is another one."""
    repeats = any(op.kind == OpKind.R for ops in plan.schedule().programs for op in ops)
    if repeats or plan.recomputed_layers or plan.workload.recomputed_layers:
        raise SynthError(
            f"--weight-prediction gives each forward other weights, and plan {plan.name!r} runs "
            f"forwards again to recompute activations; leave it out, or run a plan without "
            f"recomputation"
        )
