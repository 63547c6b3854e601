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
    from synth.runtime.pipeline.cut_stages import rank_layers

__all__ = [
    "PipelineTrainer",
    "RankModel",
    "loss_on_all_ranks",
    "next_token_targets",
    "rank_layers",
    "token_weights",
]


_PLACES = {
    "PipelineTrainer": "integrations.transformers_trainer",
    "rank_layers": "pipeline.cut_stages",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _PLACES.get(name, "integrations.loop")
    found = getattr(importlib.import_module(f"synth.runtime.{place}"), name)
    globals()[name] = found
    return found
