"""The learning rate of each step: warm-up, then constant, or linear or cosine decay.

It is a function of the step, not an object that counts, so a resumed run needs no state for it. It
equals torch's LinearLR followed by CosineAnnealingLR or LinearLR.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, model_validator

from synth.errors import SynthError
from synth.records.command_option import CommandOption
from synth.records.record import Record

Decay = Literal["constant", "linear", "cosine"]


class LearningRate(Record):
    """`peak` is reached after `warmup_steps`, `least` at the end of the run."""

    peak: Annotated[
        float, Field(ge=0, le=1e6), CommandOption("Peak learning rate.", names=("--lr",))
    ]
    decay: Annotated[
        Decay,
        CommandOption(
            "Learning rate after warm-up: constant, linear or cosine decay.", names=("--schedule",)
        ),
    ] = "constant"
    warmup_steps: Annotated[NonNegativeInt, CommandOption("Steps of linear warm-up to --lr.")] = 0
    least: Annotated[
        NonNegativeFloat,
        CommandOption(
            "Learning rate at the last step, with --schedule linear or cosine.", names=("--min-lr",)
        ),
    ] = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.least > self.peak:
            raise SynthError(f"--min-lr {self.least} is above --lr {self.peak}; give a smaller one")
        if self.least > 0 and self.decay == "constant":
            raise SynthError(
                f"--min-lr {self.least} needs a learning rate that falls, --schedule is constant; "
                f"give --schedule linear or cosine, or leave --min-lr out"
            )
        return self

    def at(self, step: int, total_steps: int) -> float:
        """The learning rate of step `step`, counted from 0, of a run of `total_steps`."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return self.peak
        decaying_steps = max(1, total_steps - self.warmup_steps)
        share = min(1.0, (step - self.warmup_steps) / decaying_steps)
        height = 1 - share if self.decay == "linear" else (1 + math.cos(math.pi * share)) / 2
        return self.least + (self.peak - self.least) * height
