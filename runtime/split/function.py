"""The autograd function that stands in for a call with a rule, and can put its W off."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .rule import Call, Rule
from .task import WeightTask


class Queue(Protocol):
    """Where weight-gradient tasks go while a B runs."""

    deferring: bool

    def push(self, task: WeightTask) -> None:
        """Keep the task for W."""


def apply_rule(queue: Queue, rule: Rule, call: Call) -> Tensor:
    """Run a call by its rule, recorded such that its W can be put off into `queue`."""
    call = _autocast(rule, call)
    output: Tensor = _SplitFunction.apply(  # type: ignore[no-untyped-call]
        queue, rule, call.options, call.dtype, call.input, *call.parameters
    )
    return output if call.finish is None else call.finish(output)


def can_apply(rule: Rule, call: Call) -> bool:
    """Whether only plain leaves would be put off: else the call is autograd's.

    A parameter with hooks is left to autograd too, which runs them when the gradient is there.
    """
    if rule.autocast == "leave" and torch.is_autocast_enabled(call.input.device.type):
        return False
    given = [p for p in call.parameters if p is not None]
    trainable = [p for p in given if p.requires_grad]
    plain = all(type(t) in (Tensor, torch.nn.Parameter) for t in (call.input, *given))
    return plain and bool(trainable) and all(p.is_leaf and not _has_hooks(p) for p in trainable)


def _has_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _autocast(rule: Rule, call: Call) -> Call:
    device = call.input.device.type
    if rule.autocast != "cast" or not torch.is_autocast_enabled(device):
        return call
    dtype = torch.get_autocast_dtype(device)
    # float64 is not for autocast to narrow; whatever else is floating goes to one dtype. The cast
    # is recorded, so that the input's gradient comes back in the input's own dtype.
    wide = call.input.dtype == torch.float64
    x = call.input if wide else call.input.to(dtype)
    return Call(x, call.parameters, call.options, dtype=dtype, finish=call.finish)


@contextmanager
def without_autocast(device: str) -> Iterator[None]:
    """Kernels below run in the dtypes the rule chose, even within a caller's autocast."""
    if not torch.is_autocast_enabled(device):
        yield
        return
    with torch.autocast(device, enabled=False):
        yield


class _SplitFunction(torch.autograd.Function):
    """Forward by the rule; backward returns both gradients, or queues those of the parameters.

    The queue is bound to the node, not to a thread: on CUDA the backward runs on threads of
    autograd's own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queue: Queue,
        rule: Rule,
        options: tuple[Any, ...],
        dtype: torch.dtype | None,
        x: Tensor,
        *parameters: Tensor | None,
    ) -> Tensor:
        with without_autocast(x.device.type):
            output, extras = rule.forward(Call(x, parameters, options, dtype=dtype))
        ctx.set_materialize_grads(False)
        # Saved as autograd saves: parameters by reference, changes in place noticed, packed by
        # whatever hooks (checkpointing) are in force.
        ctx.save_for_backward(x, *parameters, *extras)
        # Hooks may hand back copies, and the gradient belongs to the parameter itself.
        ctx.queue, ctx.rule, ctx.options, ctx.dtype, ctx.owners = (
            queue, rule, options, dtype, parameters,
        )  # fmt: skip
        # A view made in here could not be changed in place by the next layer; its alias can.
        return output.data if output._is_view() else output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        before = (None,) * 4
        needs_input, *needs_list = ctx.needs_input_grad[len(before) :]
        needs = tuple(needs_list)
        if grad is None:
            return (*before, None, *(None for _ in needs))
        call, queue, rule = _saved_call(ctx), ctx.queue, ctx.rule
        with without_autocast(grad.device.type):
            if not queue.deferring:
                x_gradient, gradients = rule.gradients(grad, call, needs_input, needs)
                return (*before, x_gradient, *gradients)
            if not rule.deferred:
                x_gradient, gradients = rule.gradients(grad, call, needs_input, needs)
                task = WeightTask(rule, ctx.owners, needs, ready=gradients)
            else:
                x_gradient = rule.input_gradient(grad, call) if needs_input else None
                task = WeightTask(rule, ctx.owners, needs, call, grad.detach())
        queue.push(task)
        return (*before, x_gradient, *(None for _ in needs))


def _saved_call(ctx: Any) -> Call:
    """The call as it was in F, of raw tensors: a saved one brings its graph along."""
    count = len(ctx.owners)
    x, *rest = (None if t is None else t.detach() for t in ctx.saved_tensors)
    assert x is not None
    extras = tuple(t for t in rest[count:] if t is not None)
    return Call(x, tuple(rest[:count]), ctx.options, extras, ctx.dtype)
