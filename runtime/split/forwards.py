"""The forwards that modules get while a stage's F runs: tracked, intercepted, or recorded.

Each replaces `forward` in one module's own attributes and is made once, so that the guards of
compilers see the same object.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .apply_rule import apply_rule, can_apply, in_function_transform, record_by_autograd
from .interception import Interception, without_interception
from .rule import Call, rule_for
from .split_backward import SplitTape

_LINEAR_FORWARD = nn.Linear.forward


class Forward(Protocol):
    """Replaces a module's forward."""

    @property
    def attribute(self) -> str:
        """The attribute that it takes the place of."""
        ...

    @property
    def module(self) -> nn.Module:
        """The module."""
        ...

    def enter(self) -> bool:
        """Prepare to stand in; False leaves the module's own forward in place."""
        ...

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the module."""
        ...


class Recording:
    """The tape that is being recorded on, common to the forwards of one stage."""

    __slots__ = ("intercepts", "tape")

    def __init__(self) -> None:
        self.tape = SplitTape()
        self.intercepts = False


@contextmanager
def replaced(forwards: Iterable[Forward]) -> Iterator[None]:
    """Within it, modules run by these forwards; a forward that the user patched is put back."""
    before = []
    for forward in forwards:
        attributes = vars(forward.module)
        if forward.enter():
            name = forward.attribute
            before.append((attributes, name, attributes.get(name)))
            # Not through `setattr`, which modules have made slow.
            attributes[name] = forward
    try:
        yield
    finally:
        for attributes, name, patched in before:
            if patched is None:
                del attributes[name]
            else:
                attributes[name] = patched


class RunningModules:
    """Keeps a list of the modules that are running, the innermost last."""

    __slots__ = ("_path", "_run", "module")
    attribute = "forward"

    def __init__(self, module: nn.Module, path: list[nn.Module]) -> None:
        self.module = module
        self._path = path
        self._run: Any = None

    def enter(self) -> bool:
        """Replaces any forward."""
        self._run = self.module.forward
        return True

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the module, on the list."""
        self._path.append(self.module)
        try:
            return self._run(*arguments, **keywords)
        finally:
            self._path.pop()


class CallInterceptor:
    """Sends the calls of one module that have a rule to it."""

    __slots__ = ("_recording", "_run", "module")
    attribute = "forward"

    def __init__(self, module: nn.Module, recording: Recording) -> None:
        self.module = module
        self._recording = recording
        self._run: Any = None

    def enter(self) -> bool:
        """Replaces any forward."""
        self._run = self.module.forward
        return True

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the module, intercepted."""
        recording = self._recording
        if torch.compiler.is_compiling() or recording.intercepts:
            return self._run(*arguments, **keywords)
        recording.intercepts = True
        try:
            with Interception(recording.tape):
                return self._run(*arguments, **keywords)
        finally:
            recording.intercepts = False


class Compiled:
    """Runs a compiled module without interception, which its compiler would take for a part of it.

    Otherwise the first F, which is intercepted as a whole, would be compiled separately from the
    others, and would pass other tensors to checkpointing.
    """

    __slots__ = ("_run", "attribute", "module")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        # Set by `module.compile()`; that of `torch.compile(module)` is a forward.
        self.attribute = "_compiled_call_impl" if module._compiled_call_impl else "forward"
        self._run: Any = None

    def enter(self) -> bool:
        """Replaces the compiled forward."""
        self._run = getattr(self.module, self.attribute)
        return True

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the module."""
        with without_interception():
            return self._run(*arguments, **keywords)


class RecordedLinear:
    """Records the one call of an `nn.Linear`, at a fraction of the cost of interception."""

    __slots__ = ("_recording", "module")
    attribute = "forward"

    def __init__(self, module: nn.Linear, recording: Recording) -> None:
        self.module = module
        self._recording = recording

    def enter(self) -> bool:
        """Does not stand in for a forward that is not torch's own."""
        return runs_as_linear(self.module) and nn.Linear.forward is _LINEAR_FORWARD

    def __call__(self, x: Tensor) -> Tensor:
        """Run the layer, as `linear(x)` does."""
        linear = self.module
        parameters = linear._parameters
        weight: Any = parameters.get("weight")
        if weight is None:  # computed from others, as pruning and the old weight_norm do
            weight = linear.weight
        bias: Any = linear.bias
        if torch.compiler.is_compiling():
            return F.linear(x, weight, bias)
        return record_linear(self._recording.tape, x, weight, bias)


def runs_as_linear(module: nn.Linear) -> bool:
    """True if the forward is torch's own, of a subclass too, and not replaced."""
    return type(module).forward is nn.Linear.forward and "forward" not in vars(module)


def record_linear(tape: SplitTape, x: Tensor, weight: Any, bias: Any) -> Tensor:
    """Compute `F.linear(x, weight, bias)`, recorded on the tape."""
    if not torch.is_grad_enabled():
        tape.recomputes = True  # see Interception
        with torch._C.DisableTorchFunction():
            return F.linear(x, weight, bias)
    rule = rule_for(F.linear)
    assert rule is not None
    if _is_plain(tape, x, weight, bias):
        return record_by_autograd(tape, rule, Call(x, (weight, bias)))
    call = rule.bind(x, weight, bias)
    if call is None or not can_apply(rule, call, tape.left, tape.listened):
        return F.linear(x, weight, bias)
    with torch._C.DisableTorchFunction():
        return apply_rule(tape, rule, call)


def _is_plain(tape: SplitTape, x: Tensor, weight: Any, bias: Any) -> bool:
    """True if all that `apply_rule` asks has the usual answer."""
    return (
        type(x) is Tensor
        and x.requires_grad
        and not x.is_nested
        and x.is_contiguous()
        and x.ndim > 1
        and _is_trainable(weight)
        and (bias is None or _is_trainable(bias))
        and not tape.left
        and not torch.is_autocast_enabled(x.device.type)
        and not in_function_transform()
    )


def _is_trainable(parameter: Any) -> bool:
    return (
        type(parameter) is nn.Parameter and parameter.requires_grad and not parameter.is_complex()
    )
