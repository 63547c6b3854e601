"""Functions for training loops of other programs, beside the methods of a pipeline."""

from typing import Any

import torch
from torch import Tensor, nn

from ..pipeline import Pipeline

IGNORED = -100
"""The label that cross entropy leaves out."""


class RankModel(nn.Module):
    """The modules that a rank of a pipeline updates, as one module that is not called.

    Other programs take its parameters, its mode and its device.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.stages = nn.ModuleDict({str(n): each for n, each in pipeline.updated.items()})

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **others: Any
    ) -> Any:
        """Refuse the call: the pipeline runs its stages."""
        raise NotImplementedError("call `step` or `evaluate` of the pipeline")

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zero the gradients, which stay allocated, as plans count them."""
        super().zero_grad(set_to_none)


def loss_on_all_ranks(pipeline: Pipeline, loss: Tensor | None) -> Tensor:
    """Return the loss of a step on all ranks of a pipeline, which call this at the same time.

    Args:
        pipeline: the pipeline.
        loss: what `step` or `evaluate` returned. Two copies of the last stage have a part each.
    """
    own = None if loss is None else loss.detach().cpu()
    parts = [part for part in pipeline.ranks.gather(own) if part is not None]
    return torch.stack(parts).sum().to(pipeline.device)


def next_token_targets(labels: Tensor) -> Tensor:
    """Return the targets of the same positions for labels as models of transformers take them.

    Those models compare a position with the label behind it; the last one has none.

    Args:
        labels: int64 [batch, time]; -100 is left out.
    """
    return nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def token_weights(targets: Tensor, num_micro_batches: int, tokens: float | None = None) -> Tensor:
    """Return the weight of each micro-batch in a mean over the tokens of all of them.

    Args:
        targets: of a mini-batch, [batch, time]; -100 is left out.
        num_micro_batches: into which the first dimension is cut.
        tokens: the tokens of the mean, of several mini-batches perhaps; None: those of this one.

    Returns:
        float64 [num_micro_batches].
    """
    counted = (targets != IGNORED).flatten(1).sum(1).reshape(num_micro_batches, -1).sum(1).double()
    return counted / (counted.sum() if tokens is None else tokens)
