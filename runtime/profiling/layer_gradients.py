"""The gradients and buffers of a layer after plain autograd, to compare ways of running it."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..models.layered_stage import LayerCall
from ..state.module_state import unchanged
from .sample import Sample, copied, positional

Gradients = Mapping[str, Tensor | None]
"""By the name of a parameter, or `input N`; None: autograd found no way to it.

By `buffer NAME` it is the value that F leaves there.
"""

_SEED = 0


def layer_gradients(sample: Sample, call: LayerCall) -> Gradients:
    """Return the gradients of the sum of a layer's outputs, and its buffers after F.

    The layer stays as it was.

    Args:
        call: how it is called; its random numbers are the same each time.
    """
    leaves, tree = pytree.tree_flatten(sample.x)
    inputs = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    sources: dict[str, Tensor] = {}
    trained = iter(() if sample.entry is None else sample.entry.leaves)
    for place, leaf in enumerate(inputs):
        if isinstance(leaf, Tensor) and not sample.is_first and next(trained).differentiable:
            inputs[place] = sources[f"input {place}"] = leaf.clone().requires_grad_()
    sources |= {name: p for name, p in call.module.named_parameters() if p.requires_grad}
    # A layer may change its input in place, which autograd does not allow for a leaf.
    given = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in inputs]
    arguments = positional(pytree.tree_unflatten(given, tree), is_first=sample.is_first)
    if sample.targets is not None:
        arguments = (*arguments, copied(sample.targets))
    devices = [sample.device] if sample.device.type == "cuda" else []
    with unchanged(call.module), torch.random.fork_rng(devices=devices):
        call.begin()
        outputs = [
            leaf
            for leaf in pytree.tree_leaves(call(arguments, _SEED))
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        call.end()
        buffers = {f"buffer {name}": b.clone() for name, b in call.module.named_buffers()}
        if not outputs or not sources:
            return buffers
        ones = [torch.ones_like(output) for output in outputs]
        found = torch.autograd.grad(outputs, [*sources.values()], ones, allow_unused=True)
    return dict(zip(sources, found, strict=True)) | buffers


def are_alike(one: Tensor | None, other: Tensor | None) -> bool:
    """Return True if gradients or buffers differ by no more than the rounding of their dtype."""
    if one is None or other is None:
        return one is other
    if not one.dtype.is_floating_point and not one.is_complex():
        return torch.equal(one, other)
    wide = torch.complex128 if one.is_complex() else torch.float64
    exact = one.to(wide)
    difference, size = float((exact - other.to(wide)).norm()), float(exact.norm())
    return difference <= torch.finfo(one.dtype).eps ** 0.5 * size or not isfinite(size)
