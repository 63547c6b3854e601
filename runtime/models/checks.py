"""Checks of the sizes of models."""

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

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


def check_has_sizes(module: nn.Module, name: str) -> None:
    """Check that no parameter or buffer waits for its first forward to get its size.

    Args:
        module: a layer, or a whole model.
        name: what an error calls it.
    """
    lazy = next((part for part in module.modules() if _is_lazy(part)), None)
    if lazy is not None:
        raise SynthError(
            f"{name} has a {type(lazy).__name__}, whose sizes are unknown until its first "
            f"forward: give the sizes, or run it once before you return it"
        )


def _is_lazy(module: nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(map(is_lazy, own))
