"""The last layer of the built-in models: norm, logits, and the loss."""

import torch.nn.functional as F
from torch import Tensor, nn

STD = 0.02


class Head(nn.Module):
    """(x_BTD, targets_BT) -> the mean cross entropy, a scalar, in nats per token.

    The norm is the model's own; its matrix is not the embedding's, which may be on another rank.
    """

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm, vocabulary_size: int, width: int) -> None:
        super().__init__()
        self.norm = norm
        self.logits = nn.Linear(width, vocabulary_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A normal matrix, a norm of one."""
        self.norm.reset_parameters()
        nn.init.normal_(self.logits.weight, std=STD)

    def forward(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """The loss, computed in float32."""
        logits_BTV = self.logits(self.norm(x_BTD))
        return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())
