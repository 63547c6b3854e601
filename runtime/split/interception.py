"""Sends the calls that have a rule to it, while F (or a recomputation within B) runs."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode

from .apply_rule import Queue, apply_rule, can_apply, in_function_transform
from .functions import Apply, apply_function, weights_of
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
        # A mode may be entered again within itself.
        self._outer: list[Interception | None] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
        if call is None or not can_apply(rule, call, self._queue.left, self._queue.listened):
            return func(*args, **kwargs)
        self.note(call)
        return apply_rule(self._queue, rule, call)

    def __enter__(self) -> Any:
        """Put the mode in force, also for custom autograd functions."""
        self._outer.append(_innermost())
        _state.interception = self
        _Base.apply = classmethod(_apply)
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch has no annotation

    def __exit__(self, *raised: Any) -> None:
        """Put the outer one back in force."""
        _state.interception = outer = self._outer.pop()
        if outer is None and "apply" in vars(_Base):
            del _Base.apply
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def run_function(self, function: Any, arguments: tuple[Any, ...], apply: Apply) -> Any:
        """Stand in for `function.apply`, of a custom autograd function."""
        places = weights_of(function, arguments, self._queue)
        if not places:
            return apply(function, *arguments)
        others = [a for i, a in enumerate(arguments) if isinstance(a, Tensor) and i not in places]
        self.note(Call(others[0], tuple([arguments[i] for i in places])))
        with without_interception(), self.watch_function():  # its forward records nothing
            return apply_function(self._queue, function, arguments, places, apply)

    def watch_function(self) -> AbstractContextManager[object]:
        """Observe the forward of a custom function; subclasses override this."""
        return nullcontext()

    def note(self, call: Call | None) -> None:
        """Observe a call that has a rule; subclasses override this.

        None stands for a call without gradient recording.
        """


@contextmanager
def without_interception() -> Iterator[None]:
    """Disable the modes of this package within the block; other modes stay."""
    interception, _state.interception = _innermost(), None
    try:
        with _without_modes():
            yield
    finally:
        _state.interception = interception


_state = threading.local()


def _innermost() -> Interception | None:
    return getattr(_state, "interception", None)


def _apply(function: Any, *arguments: Any) -> Any:
    """Stands between `Function.apply` and the C++ method of that name, which no mode sees."""
    interception = None if in_function_transform() else _innermost()
    if interception is None:
        return _apply_in_c(function, *arguments)
    return interception.run_function(function, arguments, _apply_in_c)


def _apply_in_c(function: Any, *arguments: Any) -> Any:
    return super(_Base, function).apply(*arguments)


_Base: Any = torch.autograd.function._SingleLevelFunction


@contextmanager
def _without_modes() -> Iterator[None]:
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
