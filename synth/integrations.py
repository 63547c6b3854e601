"""Pipelines in other training programs, by the path that programs import (`docs/training.md`).

`PipelineTrainer` needs transformers and accelerate, which are imported when it is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synth.runtime.integrations.loop import (
        RankModel,
        loss_on_all_ranks,
        next_token_targets,
        token_weights,
    )
    from synth.runtime.integrations.transformers_trainer import PipelineTrainer

__all__ = [
    "PipelineTrainer",
    "RankModel",
    "loss_on_all_ranks",
    "next_token_targets",
    "token_weights",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "transformers_trainer" if name == "PipelineTrainer" else "loop"
    found = getattr(importlib.import_module(f"synth.runtime.integrations.{place}"), name)
    globals()[name] = found
    return found
