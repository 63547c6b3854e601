"""The structure of a micro-batch that a forward was recorded with."""

from collections.abc import Hashable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from synth.errors import SynthError


class Structure:
    """The names, shapes and dtypes in a tree of tensors, and its values that are no tensors."""

    def __init__(self, tree: Any) -> None:
        leaves = _named_leaves(tree)
        self._looks = {name: _look(leaf) for name, leaf in leaves.items()}
        self.count = sum(isinstance(leaf, Tensor) for leaf in leaves.values())

    def tensors_of(self, tree: Any, receiver: str) -> list[Tensor]:
        """Return the tensors of another tree, by name in the order of this one.

        Raises:
            SynthError: the tree has another structure, or other values that are no tensors.
        """
        leaves = _named_leaves(tree)
        for name in {**self._looks, **leaves}:
            was = self._looks.get(name, "nothing")
            now = _look(leaves[name]) if name in leaves else "nothing"
            if was != now:
                raise SynthError(
                    f"{receiver} is given {now} as {name or 'the value'}, and was cut for {was}: "
                    f"micro-batches need the form of those that `cut_model` got; cut again for "
                    f"others"
                )
        return [leaves[name] for name in self._looks if isinstance(leaves[name], Tensor)]


def _named_leaves(tree: Any) -> dict[str, Any]:
    try:
        pairs, _ = pytree.tree_flatten_with_path(tree)
    except ValueError:  # a container that is registered without names
        return {f"[{place}]": leaf for place, leaf in enumerate(pytree.tree_leaves(tree))}
    return {pytree.keystr(path): leaf for path, leaf in pairs}


def _look(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return look_of(leaf)
    return f"{type(leaf).__name__} {leaf!r}"


def look_of(tensor: Tensor) -> str:
    """Return a tensor's shape and dtype in words."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
