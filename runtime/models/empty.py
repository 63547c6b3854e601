"""Modules whose parameters have no values yet, because a file has them."""

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook


class _Here(threading.local):
    """The parameters that this thread replaces: by id, a parameter and the one in its place."""

    made: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] | None = None


_HERE = _Here()


def _on_meta(module: nn.Module, name: str, parameter: Any) -> Any:
    """Replace a parameter that is registered; one under several names is replaced by one."""
    made = _HERE.made
    if made is None or parameter is None or parameter.is_meta:
        return None
    if type(parameter) is not nn.Parameter:
        return None  # of a class of its own, which may keep more than numbers
    original, replaced = made.get(id(parameter), (None, None))
    if replaced is None or original is None or original() is not parameter:
        replaced = _with_attributes(parameter, parameter.detach().to("meta"))
        made[id(parameter)] = weakref.ref(parameter), replaced
    return replaced


def _with_attributes(parameter: nn.Parameter, value: Tensor) -> nn.Parameter:
    """Return a parameter with another value; what a user has set on it stays."""
    made = nn.Parameter(value, requires_grad=parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made


# Once, as other threads may go through torch's hooks at any later time.
register_module_parameter_registration_hook(_on_meta)


@contextmanager
def empty_parameters() -> Iterator[None]:
    """Enter a context in which this thread makes modules whose parameters take no memory.

    The parameters are on the meta device. Buffers have their values, such as tables of rotary
    angles, which no file of weights holds.
    """
    before = _HERE.made
    _HERE.made = {} if before is None else before
    try:
        yield
    finally:
        _HERE.made = before


def has_empty_parameters(module: nn.Module) -> bool:
    """True if a parameter of the module has no value."""
    return any(parameter.is_meta for parameter in module.parameters())


def lost_tensors(module: nn.Module) -> Iterator[str]:
    """Name the tensors without values that are no parameters, of a module made without these.

    They were computed from parameters, and no file needs to have them: buffers, such as those of
    `spectral_norm`, and attributes.
    """
    for name, part in module.named_modules():
        for own, value in (*part._buffers.items(), *vars(part).items()):
            inner = value if isinstance(value, list | tuple) else (value,)
            if any(isinstance(each, Tensor) and each.is_meta for each in inner):
                yield f"{name}.{own}" if name else own


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
                    made[id(parameter)] = _with_attributes(parameter, zeros)
                module._parameters[name] = made[id(parameter)]
