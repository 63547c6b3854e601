"""Corrections of late gradients, as hooks of `build_flush_free_step`.

on_update   settings of an update from its stage's delay: `DelayedRate`, `NesterovLookAhead`
prediction  weights of forwards, ahead of the newest ones by some updates: `predict_by_delay`
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerSpec

from .rules import rule_of
from .settings import StepSettings


class StageUpdate(NamedTuple):
    """One update of one stage.

    Attributes:
        number: the updates of this stage before it, since training began.
        delay: the most updates by which the weights of its gradients are older than those that it
            updates.
    """

    stage: int
    number: int
    delay: int


OnUpdate = Callable[[StageUpdate, StepSettings], StepSettings]

# The updates by which a forward looks ahead, from its delay.
Prediction = Callable[[int], int]


class DelayedRate:
    """A learning rate that is divided by the delay at first: η / τ^p, p = 1 − min(t / K, 1).

    Yang et al. 2021, "PipeMare: Asynchronous Pipeline Parallel DNN Training", arXiv 1910.05124,
    technique 1. A stage without delay is unchanged.
    """

    def __init__(self, annealing_updates: int) -> None:
        """Make the rule; after `annealing_updates` (K) all stages have the full rate."""
        self._annealing_updates = annealing_updates

    def __call__(self, update: StageUpdate, settings: StepSettings) -> StepSettings:
        """Return the settings of an update."""
        done = min(update.number / max(1, self._annealing_updates), 1.0)
        rate = settings.learning_rate / max(1, update.delay) ** (1 - done)
        return replace(settings, learning_rate=rate)


class NesterovLookAhead:
    """Nesterov momentum for late gradients: w' = w + d − η (1 − γ) ∇f(w + d), d = γ (w − w_before).

    Ajanthan et al. 2025, "Nesterov Method for Asynchronous Pipeline Parallel Optimization", arXiv
    2505.01099. The parameters are the look-ahead points w + d, as in torch's SGD with Nesterov
    momentum, which this is with the rate η (1 − γ). Only for sgd with momentum γ. With a rate that
    changes, d is −γ η (1 − γ) times the momentum buffer, with the rate η of the last update.
    """

    def __init__(self, momentum: float) -> None:
        """Make the rule; `momentum` (γ) is that of the optimizer."""
        self._momentum = momentum

    def __call__(self, update: StageUpdate, settings: StepSettings) -> StepSettings:
        """Return the settings of an update."""
        rate = settings.learning_rate * (1 - self._momentum)
        return replace(settings, learning_rate=rate, nesterov=True)


def predict_by_delay(delay: int) -> int:
    """Predict the weights that the forward's own gradient will update, `delay` updates later.

    SpecTrain (Chen et al. 2018, arXiv 1809.02839). Here only forwards predict, as in PipeOptim
    (Guan et al. 2023, arXiv 2312.00839); backwards read the versions of the plan.
    """
    return delay


def check_predictable(spec: OptimizerSpec) -> None:
    """Refuse to predict the weights of an optimizer without a direction of past updates."""
    if not rule_of(spec).moments:
        raise SynthError(
            f"weights are predicted by the direction of past updates, which {spec} does not keep; "
            f"take adamw, or sgd with momentum"
        )
