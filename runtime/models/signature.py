"""Signatures of layers, by which equal ones are measured once."""

import re
from collections.abc import Hashable
from dataclasses import is_dataclass
from functools import partial

import torch
from torch import nn

SIMPLE = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size)

# `layer_idx`, `layer_id`, `block_number`; `layer_name`, `prefix`, `fqn`.
_NUMBER_OF_PLACE = re.compile("(^|_)(idx|index|id|number|num|no|depth)$")
_NAME_OF_PLACE = re.compile("(^|_)(name|prefix|path|fqn)$")


def layer_signature(layer: nn.Module, *, with_places: bool = True) -> Hashable:
    """A key that is equal for layers of equal cost, so that only one of them is measured.

    It covers the classes of all sub-modules, the shapes and dtypes of parameters and buffers, and
    the hyper-parameters. An attribute that is not a plain value distinguishes layers unless it is
    the same object, or a data class, a dictionary or a partial function of equal content. Compare
    only signatures of layers that are alive.

    Args:
        with_places: False leaves out what tells a layer's place in the model, such as `layer_idx`,
            and the numbers in names.
    """
    parts = layer.named_modules()
    return tuple((name, _own_signature(module, with_places)) for name, module in parts)


def _own_signature(module: nn.Module, with_places: bool) -> Hashable:
    own = {**module._parameters, **module._buffers}
    tensors = tuple(
        (name, None if t is None else (tuple(t.shape), t.dtype, t.requires_grad))
        for name, t in own.items()
    )
    settings = tuple(
        (name, _value(value if with_places else _without_place(name, value)))
        for name, value in sorted(vars(module).items())
        if not name.startswith("_")
    )
    return type(module), tensors, settings


def _without_place(name: str, value: object) -> object:
    if type(value) is int and _NUMBER_OF_PLACE.search(name):
        return 0
    if type(value) is str and _NAME_OF_PLACE.search(name):
        return re.sub(r"\d+", "0", value)
    return value


def _value(value: object) -> Hashable:
    if isinstance(value, SIMPLE):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(_value(item) for item in value)
    if isinstance(value, dict):
        return type(value), tuple((repr(key), _value(item)) for key, item in value.items())
    if isinstance(value, partial):
        return type(value), _value(value.func), _value(value.args), _value(value.keywords)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), _value(vars(value) if hasattr(value, "__dict__") else id(value))
    return type(value), id(value)
