"""What a step may choose anew each time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepSettings:
    """Of one step; a step that is redone later is redone with those that it had."""

    learning_rate: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
