"""Other inputs of the same form as given ones, for comparisons that one batch would not decide."""

from collections.abc import Callable

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


def redrawn(seed: int) -> Change:
    """Return a function to other inputs: with the same values, in other counts and places.

    Real numbers are scaled as well.
    """
    draw = torch.Generator().manual_seed(seed)

    def other(tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor
        places = torch.randint(tensor.numel(), tensor.shape, generator=draw)
        values = tensor.detach().flatten()[places.to(tensor.device)]
        scale = 0.5 + 0.5 * float(torch.rand((), generator=draw))
        return values * scale if tensor.is_floating_point() else values

    return other


def turned(tensor: Tensor) -> Tensor:
    """Return the samples in another order, which keeps them as the model may need them."""
    return tensor.flip(0) if tensor.dim() else tensor.clone()
