"""Containers that modules are given and change, such as a dictionary of keys and values to share.

A module that puts tensors into such a container gives them to those that come after it, as much as
it gives what it returns. They are found in the tree of its arguments, as they are after the call.
"""

from collections import UserDict
from typing import Any, NamedTuple

from torch.utils import _pytree as pytree


class _OpenDict(NamedTuple):
    """A `UserDict`, which is a leaf to pytree, as one of its trees."""

    kind: type[UserDict[Any, Any]]
    entries: dict[Any, Any]


def opened(tree: Any) -> Any:
    """Return a tree with containers of its own, in which those of `UserDict` are nodes, too."""
    return pytree.tree_map(_open, tree)


def _open(leaf: Any) -> Any:
    return _OpenDict(type(leaf), opened(leaf.data)) if isinstance(leaf, UserDict) else leaf


def closed(tree: Any) -> Any:
    """Return the tree that was opened."""
    return pytree.tree_map(_close, tree, is_leaf=lambda node: isinstance(node, _OpenDict))


def _close(leaf: Any) -> Any:
    return leaf.kind(closed(leaf.entries)) if isinstance(leaf, _OpenDict) else leaf


def has_changed(before: Any, after: Any) -> bool:
    """True if two opened trees differ in their form, or hold other objects."""
    leaves, spec = pytree.tree_flatten(before)
    now, now_spec = pytree.tree_flatten(after)
    return spec != now_spec or any(a is not b for a, b in zip(leaves, now, strict=True))


def has_containers(tree: Any) -> bool:
    """True if there are containers in a tuple, at any depth of tuples, that can be changed."""
    if isinstance(tree, tuple):
        return any(map(has_containers, tree))
    return isinstance(tree, dict | UserDict | list)


def refill(arguments: Any, content: Any) -> None:
    """Give the containers in a call's arguments the entries of an opened tree of them."""
    args, kwargs = arguments
    for before, now in zip((*args, *kwargs.values()), (*content[0], *content[1].values()),
                           strict=True):  # fmt: skip
        _refilled(before, now)


def _refilled(before: Any, now: Any) -> Any:
    """Return a container with other entries, or what stands in its place."""
    if isinstance(before, UserDict) and isinstance(now, _OpenDict):
        before.data = _refilled(before.data, now.entries)
    elif isinstance(before, dict) and isinstance(now, dict):
        entries = {key: _refilled(before.get(key), value) for key, value in now.items()}
        before.clear()
        before.update(entries)
    elif isinstance(before, list) and isinstance(now, list):
        old = [*before, *[None] * len(now)]
        before[:] = [_refilled(old[place], value) for place, value in enumerate(now)]
    elif type(before) is tuple is type(now) and len(before) == len(now):
        return tuple(map(_refilled, before, now))
    else:
        return closed(now)
    return before
