"""The next layer of a stage, which hands gradients over: nobody else holds them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..execution.base.boundary import Tensors


class HandOver(nn.Module):
    """Returns its inputs, and gives the layer before it the gradients that were left here."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[Tensor] = []

    def leave(self, gradients: Tensors) -> Tensors:
        """Leave gradients here; return one number in the place of each, to begin a backward with.

        The caller drops its own.
        """
        self.gradients = list(gradients)
        return tuple(one.new_zeros(()).expand(one.shape) for one in gradients)

    def forward(self, *inputs: Any) -> Any:
        """Return the inputs."""
        leaves, spec = pytree.tree_flatten(inputs[0] if len(inputs) == 1 else inputs)
        places = [
            place
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        found = _Hand.apply(self, *(leaves[place] for place in places))  # type: ignore[no-untyped-call]
        for place, leaf in zip(places, found, strict=True):
            leaves[place] = leaf
        return pytree.tree_unflatten(leaves, spec)


class _Hand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, home: HandOver, *tensors: Tensor) -> Tensors:
        ctx.home = home
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *stand_ins: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.home.gradients = ctx.home.gradients, []
        return (None, *gradients)
