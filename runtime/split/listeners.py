"""Finds the parameters with gradient hooks, so that W delivers through autograd.

DistributedDataParallel, Megatron's and DeepSpeed's optimizers register hooks on a parameter's
AccumulateGrad node, which has no public list of them. Autograd itself holds such a node only while
a graph needs it; code that registered a hook keeps it alive.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.graph import _engine_run_backward, get_gradient_edge


class _Mark:
    """Dies with the node that it was left on."""

    __slots__ = ("__weakref__",)


def find_listened(parameters: Iterable[Tensor]) -> dict[int, Tensor]:
    """The trainable leaves that have hooks or whose AccumulateGrad node is held, by their id.

    No graph that reaches the parameters may be alive, because its nodes would count as held.
    """
    return {id(p): p for p in parameters if p.requires_grad and p.is_leaf and _is_listened(p)}


def has_hooks(parameter: Tensor) -> bool:
    """True if the tensor itself has hooks; those of its node are not included."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def deliver(parameter: Tensor, gradient: Tensor) -> None:
    """Accumulate by autograd's own node, which runs tensor, node and post-accumulate hooks."""
    _engine_run_backward(
        (parameter,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


@contextmanager
def deliveries(listened: Mapping[int, Tensor]) -> Iterator[Callable[[], set[int]]]:
    """Find the parameters to which autograd adds something within the block, by their keys.

    A gradient counts its changes. Those that are views of one memory, as of DDP with
    `gradient_as_bucket_view`, have one count together, so hooks tell of theirs.
    """
    seen, before, hooks = set[int](), dict[int, tuple[int, int] | None](), []
    for key, parameter in listened.items():
        if parameter.grad is not None and parameter.grad._is_view():
            note = partial(_note, seen, key)
            hooks.append(parameter.register_hook(note))  # type: ignore[no-untyped-call]
        else:
            before[key] = _state(parameter)

    def found() -> set[int]:
        return seen | {key for key, state in before.items() if _state(listened[key]) != state}

    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _note(seen: set[int], key: int, gradient: Tensor) -> None:
    seen.add(key)


def _state(parameter: Tensor) -> tuple[int, int] | None:
    """A value that changes when something is added to the gradient."""
    gradient = parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)


def _is_listened(parameter: Tensor) -> bool:
    return has_hooks(parameter) or _leave_mark(parameter)() is not None


def _leave_mark(parameter: Tensor) -> weakref.ref[_Mark]:
    """Leave a mark on the parameter's node; both die on return unless code holds the node."""
    metadata: Any = get_gradient_edge(parameter).node.metadata  # declared as a method
    metadata["synth"] = mark = _Mark()
    return weakref.ref(mark)
