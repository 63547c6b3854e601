"""Tensors that are held by values of Python."""

from collections.abc import Iterator
from functools import partial
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_PLAIN = type | ModuleType | int | float | complex | str | bytes | torch.dtype | torch.device


def holds_tensors(value: Any) -> bool:
    """True if a value holds a tensor anywhere."""
    return next(tensors_in(value), None) is not None


def tensors_in(value: Any, depth: int = 4) -> Iterator[Tensor]:
    """Yield the tensors that a value holds in attributes, closures and containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif depth and not isinstance(value, _PLAIN):
        held = [*pytree.tree_leaves(getattr(value, "__dict__", {}))]
        held += [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
        held += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        if isinstance(value, partial):
            held += [value.func, *pytree.tree_leaves((value.args, value.keywords))]
        if isinstance(value, MethodType):
            held.append(value.__self__)
        if isinstance(value, list | tuple | dict | set):
            held += pytree.tree_leaves(list(value.values() if isinstance(value, dict) else value))
        for each in held:
            if each is not value:
                yield from tensors_in(each, depth - 1)
