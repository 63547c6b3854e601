"""Parts of a parameter, such as one expert's matrix of a stack of them: views of a trainable leaf.

Autograd would make a gradient of the whole parameter for each of its views, zero but for one part.
W adds the part's gradient where it belongs. The sums have the same bits, as adding zeros changes
none, unless views of one parameter overlap without being equal.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

# Autograd's nodes of views whose elements are all different elements of the viewed tensor.
VIEWS = frozenset(
    {
        "AliasBackward0",
        "DetachBackward0",
        "PermuteBackward0",
        "SelectBackward0",
        "SliceBackward0",
        "SplitBackward0",
        "SplitWithSizesBackward0",
        "SqueezeBackward0",
        "SqueezeBackward1",
        "TBackward0",
        "TransposeBackward0",
        "UnbindBackward0",
        "UnflattenBackward0",
        "UnsqueezeBackward0",
        "ViewBackward0",
    }
)


def is_region(tensor: Tensor) -> bool:
    """True if a tensor is a part of a trainable leaf, differentiable through views alone."""
    base = tensor._base
    if base is None or tensor.is_leaf or type(tensor) is not Tensor:
        return False
    if not base.is_leaf or not base.requires_grad or tensor.dtype != base.dtype:
        return False
    return tensor._backward_hooks is None and _leads_to(tensor.grad_fn, base)


def leaf_of(target: Tensor) -> Tensor:
    """The parameter that a leaf or region belongs to."""
    if target.is_leaf:
        return target
    base = target._base
    assert base is not None
    return base


def is_transpose(target: Tensor) -> bool:
    """True if a target is the transpose of a whole parameter."""
    if target.is_leaf:
        return False
    base = leaf_of(target)
    if target.ndim != 2 or base.ndim != 2:
        return False
    return target.shape == base.shape[::-1] and target.stride() == base.stride()[::-1]


def key_of(target: Any) -> Hashable:
    """A key that is equal for uses of the same elements of the same parameter."""
    if not isinstance(target, Tensor):  # computed of parameters, known by autograd's edge
        return target.edge.node, target.edge.output_nr
    if target.is_leaf:
        return id(target)
    base = leaf_of(target)
    offset = target.storage_offset() - base.storage_offset()
    return id(base), offset, tuple(target.shape), target.stride()


def add_to_region(whole: Tensor, target: Tensor, gradient: Tensor) -> None:
    """Add the gradient of a region to a tensor of its leaf's shape, in place."""
    base = leaf_of(target)
    if whole.stride() != base.stride():
        laid = torch.zeros_like(base, dtype=whole.dtype)
        add_to_region(laid, target, gradient)
        whole.add_(laid)
        return
    offset = whole.storage_offset() + target.storage_offset() - base.storage_offset()
    whole.as_strided(target.shape, target.stride(), offset).add_(gradient)


def _leads_to(node: Any, base: Tensor) -> bool:
    while node is not None and node.name() in VIEWS:
        node = node.next_functions[0][0]
    return node is not None and getattr(node, "variable", None) is base
