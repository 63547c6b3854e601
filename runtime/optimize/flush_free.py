"""Updates between ops: no stage waits for another, and settings may depend on its delay."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerSpec

from ..execution.base.stepper import WeightRead
from .delay_corrections import OnUpdate, Prediction, StageUpdate, check_predictable
from .gradients import Gradients, widen_gradients
from .norm import GradientNorm
from .settings import StepSettings
from .stage_optimizer import StageOptimizer, stage_optimizers


class FlushFreeStep:
    """Carries out STEPs that stand between ops. No stage waits for another one.

    There is no global gradient norm, for which the pipeline would have to be flushed. Gradients are
    clipped by the norm of their own stage, and a stage skips an update that is not finite.

    Attributes:
        optimizers: the optimizers of this rank's stages, by number.
        settings: the settings of the next updates.
        updates: by stage its updates so far, which `on_update` is given; 0 at first. Assign those
            of a checkpoint to go on from it.
    """

    late = False

    def __init__(
        self,
        optimizers: Mapping[int, StageOptimizer],
        gradients: Mapping[int, Gradients],
        settings: StepSettings,
        norms: Mapping[int, GradientNorm],
        delays: Mapping[int, int],
        on_update: OnUpdate | None = None,
        prediction: Prediction | None = None,
    ) -> None:
        """Prepare a rank.

        Args:
            optimizers: the optimizers of this rank's stages, by number.
            gradients: the gradients of the same stages.
            settings: the settings of the next updates; assign to `settings` to change them.
            norms: the gradient norms of each stage; empty: neither clip nor look for infinities.
            delays: the largest delay of each stage.
            on_update: returns the settings of an update; None: `settings`.
            prediction: returns the updates by which a forward looks ahead, from its delay; None:
                forwards read the weights as they are.
        """
        self.optimizers, self.settings = optimizers, settings
        self._gradients, self._norms = gradients, norms
        self._delays, self._on_update, self._prediction = delays, on_update, prediction
        self.updates = dict.fromkeys(optimizers, 0)

    def begin(self) -> None:
        for gradients in self._gradients.values():
            gradients.open()

    def validate(self) -> bool:
        """See `Stepper`: an update is valid when it is taken."""
        return True

    def synchronize(self) -> None:
        """See `Stepper`: there is nothing to wait for."""

    def around_forward(self, read: WeightRead) -> AbstractContextManager[None]:
        """A context for a forward, in which the parameters are predicted ones if that is wanted."""
        ahead = 0 if self._prediction is None else self._prediction(read.delay)
        if not ahead:
            return nullcontext()
        settings = self._next_settings(read.stage)
        return self.optimizers[read.stage].predicted(settings, ahead, from_newest=read.is_newest)

    @property
    def predicts(self) -> bool:
        return self._prediction is not None

    def step(self, stage: int) -> None:
        """Update a stage, and zero its gradients for the next update."""
        settings = self._next_settings(stage)
        gradients, found_inf = self._gradients[stage], None
        if self._norms:
            norm = self._norms[stage]
            norm.start(gradients.counted())
            verdict = norm.verdict()
            found_inf = verdict.found_inf
            if verdict.scale is not None:
                gradients.scale(verdict.scale)
        self.optimizers[stage].step(settings, found_inf)
        self.optimizers[stage].show()
        self.updates[stage] += 1
        gradients.consume()
        gradients.open()

    def finish(self) -> bool:
        """See `Stepper`: nothing is open between iterations."""
        return True

    def _next_settings(self, stage: int) -> StepSettings:
        """The settings of the next update of a stage."""
        if self._on_update is None:
            return self.settings
        update = StageUpdate(stage, self.updates[stage], self._delays[stage])
        return self._on_update(update, self.settings)


def build_flush_free_step(
    modules: Mapping[int, nn.Module],
    spec: OptimizerSpec,
    settings: StepSettings,
    *,
    delays: Mapping[int, int],
    device: torch.device,
    clip_norm: float | None = None,
    skip_nonfinite: bool = True,
    on_update: OnUpdate | None = None,
    prediction: Prediction | None = None,
) -> FlushFreeStep:
    """Make the updates of a rank whose schedule never flushes the pipeline.

    Args:
        modules: the rank's stages, by number.
        delays: the largest delay of each stage, as `version_facts` has it.
        clip_norm: the largest gradient norm of a stage; None: no clipping.
        skip_nonfinite: True if a stage skips an update when its gradient is not finite.
        on_update: see `FlushFreeStep`.
        prediction: likewise. It takes a copy of a stage's parameters while its forward runs, which
            plans do not count (`prediction_bytes`).

    Raises:
        SynthError: steps are to be validated afterwards, stages share a parameter, or there is no
            momentum to predict by.
    """
    if spec.post_validation:
        raise SynthError(
            "updates between ops wait for no norm that could be validated afterwards; leave "
            "post-validation out of the optimizer"
        )
    shared = [p for module in modules.values() for p in dict.fromkeys(module.parameters())]
    if len(shared) != len(set(shared)):
        raise SynthError(
            "stages share a parameter, and each of them would update it by itself; give every "
            "stage its own, or run a schedule that flushes the pipeline"
        )
    if prediction is not None:
        check_predictable(spec)
    if spec.float32_gradients:
        widen_gradients(modules.values())
    needs_norm = clip_norm is not None or skip_nonfinite
    return FlushFreeStep(
        stage_optimizers(modules, spec),
        {number: Gradients({number: module}) for number, module in modules.items()},
        settings,
        {number: GradientNorm(clip_norm, device, None) for number in modules} if needs_norm else {},
        delays,
        on_update,
        prediction,
    )
