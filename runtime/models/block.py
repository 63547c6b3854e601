"""What the blocks of all built-in models share: activation checkpointing, and the loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A block [B, T, D] -> [B, T, D] that, with `checkpoint`, keeps only its input in F and is
    recomputed in B. Subclasses define `run`."""

    def __init__(self, checkpoint: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint

    def run(self, x_BTD: Tensor) -> Tensor:
        """The block itself."""
        raise NotImplementedError

    def forward(self, x_BTD: Tensor) -> Tensor:
        """`run`, checkpointed if asked for and if there is to be a backward."""
        if not (self.checkpoint and torch.is_grad_enabled()):
            return self.run(x_BTD)
        # The built-in blocks draw no random numbers, so there is no generator state to restore.
        out_BTD: Tensor = checkpoint(self.run, x_BTD, use_reentrant=False, preserve_rng_state=False)
        return out_BTD


def mean_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """The mean cross entropy in nats per token, computed in float32."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())
