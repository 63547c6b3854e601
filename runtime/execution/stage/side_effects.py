"""Restores a module after a trial run: its attributes, its buffers, and tensors in caches."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_DICTIONARIES = (dict, OrderedDict, defaultdict)
_CONTAINERS = (*_DICTIONARIES, list, set, deque)

# Larger containers hold data, such as a list of token ids, and no cached tensors.
_MOST_ENTRIES = 1 << 16

_WITHOUT_CACHE = (nn.Module, Tensor, type, ModuleType, FunctionType, MethodType)


@contextmanager
def same_buffers(module: nn.Module) -> Iterator[None]:
    """Restore a module's buffers, such as running statistics, after the block.

    They may have moved to another device and back meanwhile, which makes them other tensors.
    """
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in before and before[name].shape == buffer.shape:
                    buffer.copy_(before[name])


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore the attributes, parameters and buffers of a module's parts after the block.

    `functional_call` itself leaves the trial's tensors in a module that has several names. A cache
    that a part holds, such as a dictionary of angles by length, is restored if tensors without
    data have been added to it.
    """
    kept = [vars(part) for part in module.modules()]
    kept += [own[name] for own in kept for name in _REGISTRIES if type(own.get(name)) is dict]
    before = [dict(entries) for entries in kept]
    caches = [(found, list(_items(found))) for found in _reachable(kept) if _may_be_cache(found)]
    try:
        yield
    finally:
        for entries, found in zip(kept, before, strict=True):
            _refill(entries, found.items())
        for container, items in caches:
            if _has_new_meta_tensor(container, items):
                _refill(container, items)


def _reachable(values: Iterable[Any]) -> Iterator[Any]:
    """Yield some values, and all that containers and objects other than modules hold, once each."""
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting += _inside(value)


def _inside(value: Any) -> Iterable[Any]:
    if type(value) in _DICTIONARIES:
        return tuple(value.values()) if len(value) <= _MOST_ENTRIES else ()
    if _is_container(value) or isinstance(value, tuple):
        return tuple(value) if len(value) <= _MOST_ENTRIES else ()
    if isinstance(value, _WITHOUT_CACHE):
        return ()
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return ()
    return (attributes,) if type(attributes) is dict else ()


def _is_container(value: Any) -> bool:
    return type(value) in _CONTAINERS


def _may_be_cache(value: Any) -> bool:
    return _is_container(value) and len(value) <= _MOST_ENTRIES


def _items(container: Any) -> Any:
    return container.items() if type(container) in _DICTIONARIES else container


def _refill(container: Any, items: Iterable[Any]) -> None:
    """Replace the contents of a container."""
    container.clear()
    if type(container) in (list, deque):
        container.extend(items)
    else:
        container.update(items)


def _has_new_meta_tensor(container: Any, before: list[Any]) -> bool:
    """True if a tensor without data is in what the container did not hold before."""
    old = {id(value) for item in before for value in (item if isinstance(item, tuple) else (item,))}
    values = container.values() if type(container) in _DICTIONARIES else container
    new = [value for value in values if id(value) not in old]
    return any(isinstance(found, Tensor) and found.is_meta for found in _reachable(new))
