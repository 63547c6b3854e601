"""Checks of the sizes of built-in models."""

import torch
from torch import Tensor

from synth.errors import SynthError


def check_sizes(**sizes: int) -> None:
    """Check that every size is at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise SynthError(f"{name} = {size}; it needs to be at least 1")


def check_divides(part: str, parts: int, whole: str, size: int) -> None:
    """Check that `size` divides into `parts` equal parts."""
    if size % parts:
        raise SynthError(
            f"{whole} = {size} is not divisible by {part} = {parts}; "
            f"choose a {part} that divides it"
        )


def check_tokens(tokens_BT: Tensor, context_length: int) -> None:
    """Check that tokens are int64 [batch, time], time within the model's context."""
    if tokens_BT.ndim != 2 or tokens_BT.dtype != torch.int64:
        raise SynthError(
            f"the embedding was given {tokens_BT.dtype} {list(tokens_BT.shape)}; "
            "it needs int64 token ids of shape [batch, time]"
        )
    if tokens_BT.shape[1] > context_length:
        raise SynthError(
            f"a sequence of {tokens_BT.shape[1]} tokens exceeds context_length = {context_length}; "
            "shorten the sequence or raise context_length"
        )
