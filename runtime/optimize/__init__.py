"""Optimizer steps: arithmetic, global norm, in lock-step or validated afterwards."""

from .build import StageSteps, build_steps, held_bytes
from .delay_corrections import (
    DelayedRate,
    NesterovLookAhead,
    StageUpdate,
    predict_by_delay,
)
from .flush_free import FlushFreeStep, build_flush_free_step
from .gradients import widen_gradients, zero_gradient
from .norm import GradientNorm
from .post_validation import PostValidatedStep
from .settings import StepSettings
from .stage_optimizer import (
    StageOptimizer,
    commit_bytes,
    prediction_bytes,
    static_bytes,
    workspace_bytes,
)

__all__ = [
    "DelayedRate",
    "FlushFreeStep",
    "GradientNorm",
    "NesterovLookAhead",
    "PostValidatedStep",
    "StageOptimizer",
    "StageSteps",
    "StageUpdate",
    "StepSettings",
    "build_flush_free_step",
    "build_steps",
    "commit_bytes",
    "held_bytes",
    "predict_by_delay",
    "prediction_bytes",
    "static_bytes",
    "widen_gradients",
    "workspace_bytes",
    "zero_gradient",
]
