"""The options of `synth run` that correct late gradients, for plans without a flush."""

from pydantic import PositiveInt

from synth.errors import SynthError
from synth.op_kinds import OpKind
from synth.optimizer import OptimizerKind, OptimizerSpec
from synth.record import Record
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


class DelayOptions(Record):
    """Corrections by the delay of each stage; by default there are none."""

    lr_rescheduling: PositiveInt | None = None
    """See `DelayedRate`: the updates after which the learning rate is no longer divided."""
    async_nesterov: bool = False
    """See `NesterovLookAhead`."""
    weight_prediction: bool = False
    """See `predict_by_delay`."""

    def __str__(self) -> str:
        """The options as they are given; empty: none is."""
        given = {
            f"--lr-rescheduling {self.lr_rescheduling}": self.lr_rescheduling is not None,
            "--async-nesterov": self.async_nesterov,
            "--weight-prediction": self.weight_prediction,
        }
        return ", ".join(text for text, is_given in given.items() if is_given)

    def check(self, plan: Plan, spec: OptimizerSpec) -> None:
        """Refuse corrections that a run would not follow, or that contradict each other.

        Args:
            plan: the plan of the run.
            spec: its optimizer.

        Raises:
            SynthError: no gradient of the plan is late, the optimizer has no momentum to look ahead
                by, two options look ahead, or forwards run again.
        """
        if not str(self):
            return
        if plan.versions is None:
            raise SynthError(
                f"{self}: for late gradients, and plan {plan.name!r} flushes the pipeline before "
                f"each update, so that none is late; leave it out, or run a plan without a flush, "
                f"such as pipedream or 2bw"
            )
        if self.async_nesterov and self.weight_prediction:
            raise SynthError(
                "--async-nesterov and --weight-prediction both look ahead by the momentum; leave "
                "one of them out"
            )
        if self.async_nesterov and not (spec.kind == OptimizerKind.SGD and spec.momentum):
            raise SynthError(
                f"--async-nesterov is for sgd with momentum, and the optimizer is {spec}; give "
                f"--optimizer sgd:0.9, or leave it out"
            )
        if self.weight_prediction:
            check_predictable(spec)
            _check_runs_forwards_once(plan)

    def on_update(self, spec: OptimizerSpec) -> OnUpdate | None:
        """The hook that changes the settings of an update; None: nothing changes them."""
        hooks: list[OnUpdate] = []
        if self.async_nesterov:
            hooks.append(NesterovLookAhead(spec.momentum))
        if self.lr_rescheduling is not None:
            hooks.append(DelayedRate(self.lr_rescheduling))
        if not hooks:
            return None

        def change(update: StageUpdate, settings: StepSettings) -> StepSettings:
            for hook in hooks:
                settings = hook(update, settings)
            return settings

        return change

    @property
    def prediction(self) -> Prediction | None:
        """The hook that predicts weights; None: forwards read them as they are."""
        return predict_by_delay if self.weight_prediction else None


def _check_runs_forwards_once(plan: Plan) -> None:
    """Refuse predicted weights where a forward runs again, when the prediction is another one."""
    repeats = any(op.kind == OpKind.R for ops in plan.schedule().programs for op in ops)
    if repeats or plan.recomputed_layers or plan.workload.recomputed_layers:
        raise SynthError(
            f"--weight-prediction gives each forward other weights, and plan {plan.name!r} runs "
            f"forwards again to recompute activations; leave it out, or run a plan without "
            f"recomputation"
        )
