"""Modules whose parameters have no values yet, because a file has them."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook


class _Here(threading.local):
    """Whether this thread makes parameters without values."""

    is_empty = False


_HERE = _Here()


def _on_meta(module: nn.Module, name: str, parameter: Any) -> Any:
    """Replace a parameter that is registered; a tied one, registered before, stays one."""
    if not _HERE.is_empty or parameter is None or parameter.is_meta:
        return None
    if type(parameter) is not nn.Parameter:
        return None  # of a class of its own, which may keep more than numbers
    return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)


# Once, as other threads may go through torch's hooks at any later time.
register_module_parameter_registration_hook(_on_meta)


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Enter a context in which this thread makes modules whose parameters take no memory.

    The parameters are on the meta device. Buffers have their values, such as tables of rotary
    angles, which no file of weights holds.
    """
    before, _HERE.is_empty = _HERE.is_empty, True
    try:
        yield
    finally:
        _HERE.is_empty = before


def has_empty_parameters(module: nn.Module) -> bool:
    """True if a parameter of the module has no value."""
    return any(parameter.is_meta for parameter in module.parameters())


@torch.no_grad()
def allocate_parameters(layers: Iterable[nn.Module], device: torch.device | str) -> None:
    """Give parameters without values zeros on a device; tied ones stay tied among the layers."""
    made: dict[int, nn.Parameter] = {}
    kept: list[Tensor] = []  # an id is a parameter's while it lives
    for layer in layers:
        for module in layer.modules():
            for name, parameter in module._parameters.items():
                if parameter is None or not parameter.is_meta:
                    continue
                if id(parameter) not in made:
                    kept.append(parameter)
                    zeros = torch.zeros_like(parameter, device=device)
                    made[id(parameter)] = nn.Parameter(zeros, parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
