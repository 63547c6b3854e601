"""The two ways to record a call with a rule such that its W can be deferred.

Either autograd runs the call with its parameters detached, so that it computes the input gradient
alone, and a hook on the call's node takes the output gradient for W (`_Capture`). Or an autograd
function does both (`_SplitFunction`). The first costs a fraction of the second.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .derived import DerivedWeight, leaves_of, mark_recorded, owner_of
from .regions import is_region, leaf_of
from .rule import Call, Rule
from .saved_tensor import SavedTensor, saving_hooks
from .weight_task import WeightTask


class Queue(Protocol):
    """Collects weight-gradient tasks while B runs."""

    recomputes: bool
    """True if B may run parts of F again, within which the rules should be in force."""

    packs: bool
    """True if what W needs is packed by saved-tensor hooks, so that B has to run F's calls again
    under the same rules."""

    left: Collection[int]
    """Ids of parameters whose gradients are left to autograd."""

    listened: Mapping[int, Tensor]
    """The parameters, by id, with hooks on their gradients."""

    functions: dict[Any, Any]
    """The products of custom functions that can wait for W, as their first backward showed."""

    is_in_backward: bool
    """True while B runs."""

    def push(self, task: WeightTask, *, of_backward: bool) -> None:
        """Keep the task for W; `of_backward`: B itself has recorded its call."""


Owners = tuple[Tensor | DerivedWeight | None, ...]


def apply_rule(queue: Queue, rule: Rule, call: Call) -> Tensor:
    """Run a call by its rule, recorded such that its W can be deferred into `queue`."""
    call = _autocast(rule, call)
    if rule.by_autograd and call.dtype is None and call.input.requires_grad:
        return record_by_autograd(queue, rule, call)
    queue.packs |= saving_hooks() is not None
    owners = tuple([owner_of(parameter) for parameter in call.parameters])
    output: Tensor = _SplitFunction.apply(  # type: ignore[no-untyped-call]
        queue, rule, call.options, call.dtype, owners, _ANCHOR, call.input,
        *[None if p is None else p.detach() for p in call.parameters],
    )  # fmt: skip
    return output


# The output requires grad by this, and not by the parameters: else B would reach their nodes with
# no gradient, and run the hooks there.
_ANCHOR = torch.empty(0, requires_grad=True)


def can_apply(
    rule: Rule, call: Call, left: Collection[int] = (), listened: Collection[int] = ()
) -> bool:
    """True if only plain leaves, or parts of them, would be deferred; else use autograd.

    Args:
        rule: the rule of the called function.
        call: its arguments.
        left: ids of parameters that are left to autograd.
        listened: ids of parameters whose hooks must get one whole gradient.
    """
    if in_function_transform():
        return False
    if rule.autocast == "leave" and torch.is_autocast_enabled(call.input.device.type):
        return False
    if not _is_plain(call.input):
        return False
    trainable = False
    for parameter in call.parameters:
        if parameter is None:
            continue
        if not _is_plain(parameter):
            return False
        if parameter.requires_grad:
            if not can_defer(parameter, left, listened):
                return False
            trainable = True
    return trainable


def can_defer(weight: Tensor, left: Collection[int], listened: Collection[int]) -> bool:
    """True if W can have the gradient of a trainable tensor; see `can_apply`."""
    if weight.is_complex():
        return False
    if weight.is_leaf or is_region(weight):
        return not left or id(leaf_of(weight)) not in left
    leaves = leaves_of(weight)
    return bool(leaves) and not any(id(leaf) in left or id(leaf) in listened for leaf in leaves)


def in_function_transform() -> bool:
    """True if `torch.func` (vmap, grad, jvp) or forward-mode differentiation is at work.

    There tensors are proxies of others, or carry tangents through which parameters have gradients.
    """
    return (
        torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    )


def _is_plain(tensor: Tensor) -> bool:
    """True if autograd treats it as any tensor: sharded ones (tensor parallelism) included."""
    kind = type(tensor)
    if kind is Tensor or kind is torch.nn.Parameter:
        return not tensor.is_nested
    return kind.__name__ == "DTensor" and kind.__module__.startswith("torch.distributed.tensor")


def _autocast(rule: Rule, call: Call) -> Call:
    if rule.autocast != "cast":
        return call
    device = call.input.device.type
    if not torch.is_autocast_enabled(device):
        return call
    dtype = torch.get_autocast_dtype(device)
    # float64 is not for autocast to narrow; whatever else is floating goes to one dtype. The cast
    # is recorded, so that the input's gradient comes back in the input's own dtype.
    wide = call.input.dtype == torch.float64
    x = call.input if wide else call.input.to(dtype)
    return Call(x, call.parameters, call.options, dtype=dtype)


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Kernels below run in the dtypes the rule chose, even within a caller's autocast."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def record_by_autograd(queue: Queue, rule: Rule, call: Call) -> Tensor:
    """Run a call with its parameters detached, and leave its W to a hook; takes over the call."""
    x, parameters = call.input, call.parameters
    # Before the call, which checkpointing need not run again if all that it saves is there.
    saved = SavedTensor(x if saving_hooks() is None else rule.packed(call))
    queue.packs |= saved.is_packed
    call.parameters = tuple([None if p is None else p.detach() for p in parameters])
    output = rule.forward(call)[0]
    node: Any = output.grad_fn
    if output._is_view():  # of the product, which the next layer may change in place through it
        node = node.next_functions[0][0]
    owners = tuple([owner_of(parameter) for parameter in parameters])
    call.input, call.parameters = _AWAY, _in_w(rule, owners, call.parameters)
    mark_recorded(node)
    node.register_prehook(_Capture(queue, rule, call, owners, saved))
    return output


def _in_w(rule: Rule, owners: Owners, used: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    """A call's parameters as W is given them.

    They are the parameters themselves, whose memory may be gone. A computed weight is kept where
    its values are read.
    """
    return tuple(
        [
            owner
            if not isinstance(owner, DerivedWeight)
            else weight
            if rule.reads_weights_in_w
            else owner.stand_in
            for owner, weight in zip(owners, used, strict=True)
        ]
    )


# In the place of an input that was saved.
_AWAY = torch.empty(0)


class _Capture:
    """Takes an output gradient and the tensors that W needs; called by autograd within B, once."""

    __slots__ = ("_call", "_of_backward", "_owners", "_queue", "_rule", "_saved")

    def __init__(
        self, queue: Queue, rule: Rule, call: Call, owners: Owners, saved: SavedTensor
    ) -> None:
        self._queue = queue
        self._rule = rule
        self._call: Call | None = call
        self._saved: SavedTensor | None = saved
        self._owners = owners
        self._of_backward = queue.is_in_backward

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> None:
        gradient, call, self._call = gradients[0], self._call, None
        saved, self._saved = self._saved, None
        if gradient is None or call is None or saved is None:
            return
        call.input = saved.unpack()
        task = WeightTask(self._rule, self._owners, call, gradient)
        self._queue.push(task, of_backward=self._of_backward)


class _SplitFunction(torch.autograd.Function):
    """Forward by the rule; backward returns the input gradient and queues those of the parameters.

    The queue is bound to the node, not to a thread: on CUDA the backward runs on threads of
    autograd.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queue: Queue,
        rule: Rule,
        options: tuple[Any, ...],
        dtype: torch.dtype | None,
        owners: Owners,
        anchor: Tensor,
        x: Tensor,
        *parameters: Tensor | None,
    ) -> Tensor:
        with without_autocast(x.device.type):
            output, extras = rule.forward(Call(x, parameters, options, dtype=dtype))
        ctx.set_materialize_grads(False)
        # Saved as autograd saves: parameters by reference, changes in place noticed, packed by
        # whatever hooks (checkpointing) are in force.
        ctx.save_for_backward(x, *parameters, *extras)
        ctx.queue, ctx.rule, ctx.options, ctx.dtype, ctx.owners = (
            queue, rule, options, dtype, owners,
        )  # fmt: skip
        ctx.of_backward = queue.is_in_backward
        # A view made in here could not be changed in place by the next layer; its alias can.
        return output.data if output._is_view() else output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        before = (None,) * 6
        x_gradient: Tensor | None = None
        if grad is not None:
            # Nothing here is differentiated again, even if B is run with recording.
            with torch.no_grad(), without_autocast(grad.device.type):
                call = _saved_call(ctx)
                if ctx.needs_input_grad[len(before)]:
                    x_gradient = ctx.rule.input_gradient(grad, call)
                # As elsewhere, W is given the parameters themselves: their memory may be gone.
                call.parameters = _in_w(ctx.rule, ctx.owners, call.parameters)
                task = WeightTask(ctx.rule, ctx.owners, call, grad.detach())
                ctx.queue.push(task, of_backward=ctx.of_backward)
        return (*before, x_gradient, *(None for _ in ctx.owners))


def _saved_call(ctx: Any) -> Call:
    """The call as it was in F, of raw tensors: a saved one brings its graph along."""
    count = len(ctx.owners)
    x, *rest = (None if t is None else t.detach() for t in ctx.saved_tensors)
    assert x is not None
    extras = tuple(t for t in rest[count:] if t is not None)
    return Call(x, tuple(rest[:count]), ctx.options, extras, ctx.dtype)
