"""The learning rate of each step: warm-up, then constant, or linear or cosine decay.

It is a function of the step, not an object that counts, so a resumed run needs no state for it. It
equals torch's LinearLR followed by CosineAnnealingLR or LinearLR.
"""

import math
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from synth.record import Record

Decay = Literal["constant", "linear", "cosine"]


class LearningRate(Record):
    """`peak` is reached after `warmup_steps`, `least` at the end of the run."""

    peak: NonNegativeFloat
    decay: Decay = "constant"
    warmup_steps: NonNegativeInt = 0
    least: NonNegativeFloat = 0.0

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
