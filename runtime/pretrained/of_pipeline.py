"""Weights of a `Pipeline` that was made from a whole model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast, get_args

import torch.distributed as dist
from torch import nn

from synth.errors import SynthError
from synth.records.safe_read import AnyPath
from synth.run_options.weight_files import WeightFormat

from ..execution.transport.in_process.ranks import InProcessGroup
from ..models.cut import Piece
from ..optimize import StageSteps
from ..pipeline import Pipeline
from . import loading, saving
from .all_ranks import AllRanks


def load_weights(
    folder: AnyPath, pipeline: Pipeline, *, layers: Mapping[str, nn.Module] | None = None
) -> None:
    """Load the weights of a pipeline's stages in place; all ranks call this at the same time.

    Numbers are converted to the dtype of the parameters, as `from_pretrained(dtype=…)` does.

    Args:
        folder: of Hugging Face (safetensors), or a distributed checkpoint of torch (DCP).
        pipeline: made from what `cut_model` returned; its parameters may have had no values
            (`empty_parameters`). If its stepper keeps float32 master copies, they are loaded, too.
        layers: this rank's modules, of a pipeline that was made from others: by the beginning of
            their names in the folder.

    Raises:
        Mismatch: the folder is of another model; names missing, unexpected and other-shaped ones.
        SynthError: it has no weights, or they cannot be read.
    """
    loading.load_weights(
        Path(folder),
        layers_of(pipeline, layers),
        steps=_steps_of(pipeline),
        shared=pipeline.shared_parameters,
        ranks=_ranks_of(pipeline),
    )
    pipeline.broadcast_buffers()


def save_weights(
    folder: AnyPath,
    pipeline: Pipeline,
    *,
    format: Literal["hf", "dcp"] = "hf",
    source: AnyPath | None = None,
    layers: Mapping[str, nn.Module] | None = None,
) -> None:
    """Save the weights of a pipeline's stages in a new folder; all ranks call this.

    Of several pipelines beside each other all ranks call it, too, and the first that holds a
    parameter writes it.

    Args:
        folder: the new folder.
        pipeline: see `load_weights`.
        format: "hf", a folder for `from_pretrained`; or "dcp", a distributed checkpoint of torch.
        source: a folder of Hugging Face whose tokenizer and the like are copied.
        layers: see `load_weights`.

    Raises:
        SynthError: the folder has contents, or cannot be written.
    """
    if format not in get_args(Literal["hf", "dcp"]):
        raise SynthError(f'format is {format!r}; give "hf" or "dcp"')
    steps = _steps_of(pipeline)
    if steps is not None:
        steps.finish()
    saving.save_weights(
        Path(folder),
        layers_of(pipeline, layers),
        kind=WeightFormat(format),
        shared=pipeline.shared_parameters,
        ranks=_ranks_of(pipeline),
        source=None if source is None else Path(source),
    )


def layers_of(
    pipeline: Pipeline, given: Mapping[str, nn.Module] | None = None
) -> Mapping[str, nn.Module]:
    """Return this rank's layers by name: those given, or else those that `cut_model` made.

    Raises:
        SynthError: some are others.
    """
    if given is not None:
        return given
    updated = [stage for number, stage in pipeline.stages.items() if number in pipeline.updated]
    layers = [layer for stage in updated for layer in stage.layers]
    other = next((layer for layer in layers if not isinstance(layer, Piece)), None)
    if other is not None:
        raise SynthError(
            f"a {type(other).__name__} of this pipeline is no layer that cut_model made, so its "
            f"names in a whole model are unknown: give layers={{NAME: module}}"
        )
    return {cast(Piece, layer).name: layer for layer in layers}


def _steps_of(pipeline: Pipeline) -> StageSteps | None:
    stepper = pipeline.stepper
    return stepper if isinstance(stepper, StageSteps) else None


def _ranks_of(pipeline: Pipeline) -> AllRanks:
    """Return all processes, of all pipelines; or the threads of one."""
    if dist.is_initialized() and not isinstance(pipeline.ranks, InProcessGroup):
        return AllRanks.of_processes()
    return AllRanks(pipeline.ranks.rank, pipeline.ranks.gather)
