"""Rules: how the backward of one function splits into an input and a weight gradient."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from synth.errors import SynthError

Gradients = tuple[Tensor | None, ...]


@dataclass(slots=True, eq=False)  # not frozen, which would triple the cost of making one
class Call:
    """One call of a function that has a rule, in F as in B and W.

    `input` is the only argument, parameters aside, that a gradient flows to. `options` is
    everything else that the rule needs, and `extras` the tensors that its forward kept.
    """

    input: Tensor
    parameters: tuple[Tensor | None, ...]
    options: tuple[Any, ...] = ()
    extras: tuple[Tensor, ...] = ()
    dtype: torch.dtype | None = None

    def parameter(self, index: int) -> Tensor | None:
        """The parameter as the kernel takes it: cast if F ran under autocast.

        It is cast at every use, because a copy per micro-batch would cost a model's size each.
        """
        parameter = self.parameters[index]
        if parameter is None or self.dtype is None or parameter.dtype == torch.float64:
            return parameter
        return parameter.to(self.dtype)

    def weight(self) -> Tensor:
        """The first parameter, which every call has; cast as `parameter` does."""
        weight = self.parameter(0)
        assert weight is not None
        return weight

    def weight_form(self) -> Tensor:
        """The first parameter as it was given, for its shape and strides.

        W finds no memory behind it with weight passing, so that it can be neither cast nor viewed.
        """
        weight = self.parameters[0]
        assert weight is not None
        return weight


class Rule(ABC):
    """The split of one function's backward; one instance serves every call.

    All methods but `bind` run without gradient recording and outside autocast. Returned gradients
    must be new tensors of their parameter's shape. `needs` holds, per parameter, True if its
    gradient is wanted; an unwanted gradient is returned as None.
    """

    autocast: ClassVar[Literal["leave", "cast", "ignore"]] = "leave"
    """Under autocast: leave the call to autograd; cast as autocast does `F.linear`; or ignore it,
    for a function that autocast leaves alone."""

    by_autograd: ClassVar[bool] = False
    """True if autograd, recording `forward` with its parameters detached, computes what
    `input_gradient` would, at far less cost. W then gets the gradient of the output, or of what the
    output is a view of: `forward` may end in one view, and not in a view of a view."""

    reads_weights_in_w: ClassVar[bool] = True
    """False if `weight_gradients` needs nothing of parameters but their shapes and strides. With
    weight passing they are gone by then, and True gets stand-ins of NaNs."""

    @abstractmethod
    def bind(self, *args: Any, **kwargs: Any) -> Call | None:
        """Sort the function's arguments; declare them as the function does.

        None leaves the call to autograd. Recorded by autograd, so the input may be reshaped.
        """

    @abstractmethod
    def forward(self, call: Call) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The output, and the extras that the gradients need besides the input and parameters."""

    def packed(self, call: Call) -> Tensor:
        """The input in the form in which autograd passes it to saved-tensor hooks."""
        return call.input

    @abstractmethod
    def input_gradient(self, grad: Tensor, call: Call) -> Tensor:
        """The gradient of `call.input` (B); not asked for where the input needs none."""

    @abstractmethod
    def weight_gradients(self, grad: Tensor, call: Call, needs: tuple[bool, ...]) -> Gradients:
        """The gradients of `call.parameters` (W)."""


_rules: dict[object, Rule] = {}
_R = TypeVar("_R", bound=type[Rule])


def rule_for(function: object) -> Rule | None:
    """The rule registered for a torch function, if any."""
    return _rules.get(function)


def register(*functions: Callable[..., Any]) -> Callable[[_R], _R]:
    """Class decorator that makes a `Rule` the rule of these torch functions.

    A function of your own can have a rule if it takes part in torch's overrides, as custom
    operators (`torch.ops...default`) and functions in `wrap_torch_function` do:

        @torch.overrides.wrap_torch_function(lambda x, gain: (x, gain))
        def scale(x, gain):
            return x * gain

        @register(scale)
        class ScaleRule(Rule):
            def bind(self, x, gain):
                return Call(x, (gain,))

            def forward(self, call):
                return call.input * call.weight(), ()

            def input_gradient(self, grad, call):
                return grad * call.weight()

            def weight_gradients(self, grad, call, needs):
                return ((grad * call.input).flatten(0, -2).sum(0),)

    SynthError: the class is no complete `Rule`, no function is given, one is not callable, or
    one already has a rule.
    """

    def decorate(cls: _R) -> _R:
        _check(cls, functions)
        rule = cls()
        _rules.update(dict.fromkeys(functions, rule))
        return cls

    return decorate


def _check(cls: type[Rule], functions: tuple[object, ...]) -> None:
    if not (inspect.isclass(cls) and issubclass(cls, Rule)):
        raise SynthError(f"@register was put on {cls!r}; it needs a class derived from split.Rule")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise SynthError(f"rule {cls.__name__} lacks {missing}; define what is missing")
    if cls.autocast not in ("leave", "cast", "ignore"):
        raise SynthError(
            f"rule {cls.__name__}: autocast is {cls.autocast!r}, not leave/cast/ignore"
        )
    if not functions:
        raise SynthError(f"@register() on {cls.__name__} names no function; name at least one")
    for function in functions:
        _check_function(cls, function)


def _check_function(cls: type[Rule], function: object) -> None:
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise SynthError(f"@register on {cls.__name__} was given {name}; it needs a function")
    if function in _rules:
        owner = type(_rules[function]).__name__
        raise SynthError(f"{name} already has the rule {owner}; a function has one rule only")
