"""The options of a training run; everything else is in the plan."""

from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from synth.optimizer import OptimizerSpec
from synth.record import Record

from ..checkpoint.options import CheckpointOptions
from ..optimize.settings import StepSettings
from .delay_options import DelayOptions
from .learning_rate import LearningRate

DEFAULT_STEPS = 20


class TrainOptions(Record):
    """The options of a run; `steps` counts from the run's beginning, also if it is resumed."""

    data: Path | None = None
    """Text or token ids; one of `data` and `inputs` is given."""
    inputs: str | None = None
    """The user's own function that makes micro-batches, instead of data."""
    steps: PositiveInt | None = None
    """The number of steps; None: that of the epochs, or 20 without epochs."""
    epochs: PositiveInt | None = None
    """The number of passes through the data; None: sample sequences without end."""
    accumulate: PositiveInt = 1
    """Mini-batches of the plan that an optimizer step averages over, on each pipeline."""
    data_parallel: PositiveInt = 1
    """Number of pipelines that train side by side, on mini-batches of their own."""
    optimizer: OptimizerSpec | None = None
    """None: the one that was profiled."""
    look_ahead: NonNegativeInt = 0
    """See `PipelineOptions`."""
    learning_rate: LearningRate = LearningRate(peak=1e-3)
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = None
    """Of adamw; None: the usual ones."""
    delay: DelayOptions = DelayOptions()
    """Corrections of late gradients."""
    clip_norm: float | None = 1.0
    seed: int = 0
    device: str = "auto"
    timeout_s: float = 300.0
    patience_s: float = 120.0
    """The least time that a rank may stand still in an op before it is ended; 0: unlimited."""
    checkpoint: CheckpointOptions | None = None
    trace_every: int = 1
    restarts: NonNegativeInt = 0
    """The number of restarts of failed ranks, from the last checkpoint."""
    model: str | None = None
    """The user's own model, imported in place of the plan's; None: built-in models only."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.data is None) == (self.inputs is None):
            raise ValueError("either data or inputs are needed, and not both")
        return self

    def step_settings(self, learning_rate: float) -> StepSettings:
        """The settings of a step with this learning rate."""
        settings = StepSettings(learning_rate, self.weight_decay)
        return settings if self.betas is None else replace(settings, betas=self.betas)

    def resolved(self) -> Self:
        """The same for a process in another folder."""
        saved = self.checkpoint
        return self.replace(
            data=self.data and self.data.resolve(),
            checkpoint=saved and saved.replace(folder=saved.folder.resolve()),
        )
