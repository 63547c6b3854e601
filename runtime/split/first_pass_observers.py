"""Observes a stage's first F, to find where its weight gradients can be deferred.

The first F shows which modules make calls that have a rule, so that only these are intercepted
later; which parameters autograd also reaches by other paths; and whether the stage runs a backward
of its own (forces, gradient penalties), in which no rule may take part.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .apply_rule import Queue, in_function_transform
from .derived import leaves_of, nodes_of
from .interception import Interception, Opening, open_up
from .regions import is_region, leaf_of
from .rule import Call
from .saved_tensor import saving_hooks


class RunsBackward(BaseException):
    """Raised when a stage is about to run a backward of its own in its first F.

    It is not an `Exception`, which the stage might catch.
    """


@dataclass
class Findings:
    """Properties of a stage that its first F and B showed.

    Attributes:
        callers: the innermost modules whose forward makes calls with a rule; None stands for calls
            that no module's forward encloses whenever they run, such as those of a loss function
            and those that checkpointing repeats.
        mixed: ids of the parameters that have a rule in some of their uses only.
        entered: ids of the parameters of computed weights that B would reach by other ways, too. W
            would add the sum's parts in another order, or miss tensors that B has freed.
        runs_backward: the stage calls `torch.autograd` in its F, or `torch.autograd.grad` in its B.
    """

    callers: set[nn.Module | None] = field(default_factory=set)
    mixed: frozenset[int] = frozenset()
    entered: frozenset[int] = frozenset()
    runs_backward: bool = False


def _refuse_backward(func: Callable[..., Any]) -> None:
    differentiates = func is torch.autograd.grad or func is torch.autograd.backward
    if differentiates and not in_function_transform():
        raise RunsBackward


class _BackwardRefused(Opening):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _refuse_backward(func)
        return func(*args, **(kwargs or {}))


class ForwardObserver(Interception):
    """Applies rules, as any interception, and notes where."""

    def __init__(self, queue: Queue, findings: Findings, path: list[nn.Module]) -> None:
        """Prepare.

        Args:
            queue: receives weight-gradient tasks.
            path: the modules that are running, the innermost last; kept up by the caller.
        """
        super().__init__(queue)
        self._findings = findings
        self._path = path
        self._deferred: set[int] = set()
        # Ids of the parameters, by autograd's nodes on the way to weights computed of them.
        self._derived: dict[Any, set[int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this in place of `func`.

        Raises:
            RunsBackward: it differentiates.
        """
        _refuse_backward(func)
        return super().__torch_function__(func, types, args, kwargs)

    def watch_function(self) -> TorchFunctionMode:
        """A mode for the forward of a custom function."""
        return _BackwardRefused()

    def note(self, call: Call | None) -> None:
        """Note the module that makes a call with a rule, and the parameters that it defers."""
        if call is not None:
            for weight in call.parameters:
                if weight is not None and weight.requires_grad:
                    self._note_weight(weight)
        caller = self._path[-1] if self._path else None
        self._findings.callers.add(None if self._may_run_again(caller) else caller)

    def _note_weight(self, weight: Tensor) -> None:
        if weight.is_leaf or is_region(weight):
            self._deferred.add(id(leaf_of(weight)))
            return
        leaves = leaves_of(weight)
        self._deferred.update(map(id, leaves))
        for node in nodes_of(weight):
            if getattr(node, "variable", None) is None:
                self._derived.setdefault(node, set()).update(map(id, leaves))

    def _may_run_again(self, caller: nn.Module | None) -> bool:
        """True if B may repeat a part of the caller's forward without calling the caller."""
        is_checkpointed = saving_hooks() is not None or not torch.is_grad_enabled()
        return is_checkpointed and type(caller) not in (nn.Linear, nn.MultiheadAttention)

    def compare_uses(self, outputs: Any) -> None:
        """Note the parameters with a rule that autograd's graph reaches besides."""
        tensors = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]
        reached, nodes = _reached([t.grad_fn for t in tensors if t.grad_fn is not None])
        self._findings.mixed = frozenset(self._deferred & reached)
        entered = (leaves for node, leaves in self._derived.items() if node in nodes)
        computed = set().union(*self._derived.values())
        self._findings.entered = frozenset().union(computed & reached, *entered)


class BackwardObserver(Opening):
    """Leaves recomputations in B to autograd, and notes if a layer differentiates there."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._findings = findings

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this in place of `func`."""
        if func is torch.autograd.grad and not in_function_transform():
            self._findings.runs_backward = True
        return open_up(self, func, args, kwargs or {})


def _reached(nodes: list[Any]) -> tuple[set[int], set[Any]]:
    """Ids of the leaves that a graph reaches, and its nodes."""
    found: set[int] = set()
    seen = set(nodes)
    while nodes:
        for following, _ in nodes.pop().next_functions:
            if following is None or following in seen:
                continue
            seen.add(following)
            variable = getattr(following, "variable", None)
            if variable is None:
                nodes.append(following)
            else:
                found.add(id(variable))
    return found, seen
