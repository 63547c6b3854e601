"""The forward that an `nn.MultiheadAttention` gets while a stage's F runs.

Torch computes it by functions written in Python, some fifty calls of which three or four have a
rule. Copies of these functions, whose `linear` records, save the cost of intercepting the others.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import activation

from .forwards import Recording, record_linear

_ATTENTION_FORWARD = nn.MultiheadAttention.forward
_COPIED = ("_in_projection_packed", "_in_projection")
_REPLACED = {"linear", "has_torch_function", *_COPIED}


def can_record() -> bool:
    """True if this torch's functions call each other by the names that are replaced."""
    attention = F.multi_head_attention_forward
    return (
        isinstance(attention, FunctionType)
        and set(attention.__code__.co_names) >= _REPLACED
        and "F" in nn.MultiheadAttention.forward.__code__.co_names
        and getattr(activation, "F", None) is F
    )


class RecordedAttention:
    """Records the projections of one module, without interception."""

    __slots__ = ("_forward", "_recording", "module")
    attribute = "forward"

    def __init__(self, module: nn.MultiheadAttention, recording: Recording) -> None:
        self.module = module
        self._recording = recording
        self._forward = _copy(nn.MultiheadAttention.forward, F=_Functions(self._linear))

    def enter(self) -> bool:
        """Does not stand in for a forward that is not torch's own."""
        is_own = nn.MultiheadAttention.forward is _ATTENTION_FORWARD
        return is_own and "forward" not in vars(self.module)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the module, as `module(...)` does."""
        if torch.compiler.is_compiling():
            return nn.MultiheadAttention.forward(self.module, *arguments, **keywords)
        return self._forward(self.module, *arguments, **keywords)

    def _linear(self, x: Tensor, weight: Any, bias: Any = None) -> Tensor:
        return record_linear(self._recording.tape, x, weight, bias)


class _Functions:
    """`torch.nn.functional` with another attention; all else is its own."""

    def __init__(self, linear: Callable[..., Tensor]) -> None:
        projections = {name: _copy(getattr(F, name), linear=linear) for name in _COPIED}
        self.multi_head_attention_forward = _copy(
            F.multi_head_attention_forward,
            linear=linear,
            has_torch_function=lambda _: False,
            **projections,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)


def _copy(function: Any, **replaced: Any) -> Any:
    """The function, with other meanings of some global names."""
    namespace = {**function.__globals__, **replaced}
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
