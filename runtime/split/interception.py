"""Sends the calls that have a rule to it, while F (or a recomputation within B) runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode

from .apply_rule import Queue, apply_rule, can_apply
from .rule import Call, rule_for

# Functions written in Python within which calls with a rule occur (in a backward: when layers are
# recomputed). Torch offers an override the outermost call only, so these are opened up.
_COMPOSITES: frozenset[object] = frozenset(
    {F.multi_head_attention_forward, torch.autograd.backward}
)


class Opening(TorchFunctionMode):
    """A mode of this package."""


class Interception(Opening):
    """Within it, calls on trainable leaves run by their rules and queue their W in `queue`."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Torch calls this in place of `func`."""
        kwargs = kwargs or {}
        # A compiled region is one autograd function; a rule inside it would be compiled away.
        rule = None if torch.compiler.is_compiling() else rule_for(func)
        if rule is None:
            return open_up(self, func, args, kwargs)
        if not torch.is_grad_enabled():
            # Nothing is recorded: the caller may run the layers again in B, with recording.
            self._queue.recomputes = True
            self.note(None)
            return func(*args, **kwargs)
        call = rule.bind(*args, **kwargs)
        if call is None or not can_apply(rule, call, self._queue.left):
            return func(*args, **kwargs)
        self.note(call)
        return apply_rule(self._queue, rule, call)

    def note(self, call: Call | None) -> None:
        """Observe a call that has a rule; subclasses override this.

        None stands for a call without gradient recording.
        """


@contextmanager
def without_interception() -> Iterator[None]:
    """Disable the modes of this package within the block; other modes stay."""
    modes = [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]
    if not any(isinstance(mode, Opening) for mode in modes):
        yield
        return
    for _ in modes:
        _pop_torch_function_stack()
    others = [mode for mode in modes if not isinstance(mode, Opening)]
    for mode in others:
        _push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        for _ in others:
            _pop_torch_function_stack()
        for mode in modes:
            _push_on_torch_function_stack(mode)


def open_up(
    mode: TorchFunctionMode,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call a function such that the mode also gets the calls within a composite."""
    if func not in _COMPOSITES:
        return func(*args, **kwargs)
    with mode:
        return _opened(func)(*args, **kwargs)


@cache
def _opened(func: Any) -> Callable[..., Any]:
    """`func` without its own check for overrides, so that those of its inner calls take effect."""
    namespace = {**func.__globals__, "has_torch_function": lambda _: False}
    opened = FunctionType(func.__code__, namespace, func.__name__, func.__defaults__)
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened
