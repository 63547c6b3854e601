"""The settings of an optimizer step, which may change from step to step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepSettings:
    """The settings of one step; a step that is redone later uses the same ones again."""

    learning_rate: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    nesterov: bool = False
    """Of sgd with momentum."""
