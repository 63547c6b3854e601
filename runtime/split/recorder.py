"""Runs a module's Fs on tapes, and intercepts torch's functions only where that is needed.

Interception costs every call in F, whether there is a rule for it or not. In most models the calls
with a rule are those of `nn.Linear` modules, which are simply given another `forward` while F runs.
The first F, intercepted all the same, shows whether there are others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .function import apply_rule, can_apply, record_by_autograd
from .interception import Interception
from .linear import LinearRule
from .rule import Call
from .tape import OutputGradients, Outputs, SplitTape

_RULE = LinearRule()


class Recorder:
    """One module; its Fs come one at a time.

    A call with a rule outside of `nn.Linear` that first occurs in a later F is left to autograd.
    """

    def __init__(self, module: nn.Module) -> None:
        parts = (part for part in module.modules() if type(part) is nn.Linear)
        self._linears = [linear for linear in parts if "forward" not in vars(linear)]
        self._others: bool | None = None
        """Whether other calls have a rule, which the first F shows: what an F was recorded with,
        its B needs too, whatever other Fs there were in between."""

    def forward(self, tape: SplitTape, fn: Callable[..., Any], *arguments: Any) -> Any:
        """F: `fn(*arguments)`, which runs the module."""
        with self._rules(tape) as intercepted:
            output = fn(*arguments)
        if self._others is None and intercepted is not None:
            self._others = intercepted.applied
        return output

    def backward_input(
        self, tape: SplitTape, outputs: Outputs, grads: OutputGradients = None
    ) -> None:
        """B, which may run parts of the module's F again."""
        tape.backward_input(outputs, grads, rules=self._rules)

    @contextmanager
    def _rules(self, tape: SplitTape) -> Iterator[Interception | None]:
        """Within it, the module's calls that have a rule are recorded on the tape."""
        for linear in self._linears:
            # Not through `setattr`, which modules have made slow.
            vars(linear)["forward"] = partial(_forward_linear, linear, tape)
        try:
            with nullcontext() if self._others is False else Interception(tape) as intercepted:
                yield intercepted
        finally:
            for linear in self._linears:
                del vars(linear)["forward"]


def _forward_linear(linear: nn.Linear, tape: SplitTape, x: Tensor) -> Tensor:
    """What `linear(x)` gives, recorded on the tape."""
    weight: Any = linear._parameters["weight"]
    bias = linear._parameters["bias"]
    if not torch.is_grad_enabled():
        tape.recomputes = True  # see Interception
        with torch._C.DisableTorchFunction():
            return F.linear(x, weight, bias)
    if _is_plain(tape, x, weight, bias):
        return record_by_autograd(tape, _RULE, Call(x, (weight, bias)))
    call = _RULE.bind(x, weight, bias)
    if call is None or not can_apply(_RULE, call):
        return F.linear(x, weight, bias)
    with torch._C.DisableTorchFunction():
        return apply_rule(tape, _RULE, call)


def _is_plain(tape: SplitTape, x: Tensor, weight: Any, bias: Any) -> bool:
    """Whether all that `apply_rule` asks has the usual answer."""
    return (
        type(x) is Tensor
        and x.requires_grad
        and x.is_contiguous()
        and x.ndim > 1
        and _is_trainable(weight)
        and (bias is None or _is_trainable(bias))
        and not torch.is_autocast_enabled(x.device.type)
    )


def _is_trainable(parameter: Any) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and not parameter._backward_hooks
        and not parameter._post_accumulate_grad_hooks
    )
