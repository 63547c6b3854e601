"""The tensors in a tree of tuples, lists and dictionaries."""

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors in a tree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
