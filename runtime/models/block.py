"""Activation checkpointing, common to the blocks of all built-in models."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class CheckpointedBlock(nn.Module):
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
