"""Calls of modules and of autograd functions, handed to a recorder."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, Protocol

from torch import nn
from torch.autograd import Function

_patching = Lock()


class CallRecorder(Protocol):
    """Takes the calls.

    Attributes:
        is_inside: True while calls are to run as they are.
    """

    is_inside: bool

    def call_module(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Take the place of the call of a module."""

    def call_autograd(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Take the place of the `apply` of an autograd function."""


@contextmanager
def intercepted(recorder: CallRecorder, closed: Mapping[str, nn.Module]) -> Iterator[None]:
    """Within it calls of closed modules go to the recorder."""
    with _patching:
        original, watched = nn.Module.__call__, {id(module) for module in closed.values()}
        own = get_ident()

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            is_recorded = id(module) in watched and not recorder.is_inside
            if is_recorded and get_ident() == own:
                return recorder.call_module(module, original, args, kwargs)
            return original(module, *args, **kwargs)

        apply = Function.__dict__["apply"]

        def called(kind: Any, *args: Any, **kwargs: Any) -> Any:
            run = apply.__get__(None, kind)
            if recorder.is_inside or get_ident() != own:
                return run(*args, **kwargs)
            return recorder.call_autograd(run, args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        Function.apply = classmethod(called)  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]
            Function.apply = apply  # type: ignore[method-assign]
