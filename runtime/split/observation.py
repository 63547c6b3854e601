"""Observes a stage's first F, run as plain autograd, to learn where its weight gradients can wait.

The first F shows which modules make calls that have a rule, so that only these are intercepted
later; which parameters autograd also reaches in another way; and whether the stage runs a backward
of its own (forces, gradient penalties), which no rule may take part in.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .function import can_apply, in_function_transform
from .interception import COMPOSITES, opened
from .rule import rule_for
from .saved import saving_hooks


@dataclass
class Findings:
    """Properties of a stage that its first F and B showed.

    Attributes:
        callers: the innermost modules whose forward makes calls with a rule; None stands for calls
            that no module's forward encloses whenever they run, such as those of a loss function
            and those that checkpointing repeats.
        mixed: ids of the parameters that have a rule in some of their uses only.
        runs_backward: the stage calls `torch.autograd` in its F, or `torch.autograd.grad` in its B.
    """

    callers: set[nn.Module | None] = field(default_factory=set)
    mixed: frozenset[int] = frozenset()
    runs_backward: bool = False


class Observer(TorchFunctionMode):
    """Within it every call is autograd's own; those that have a rule are noted in `findings`."""

    def __init__(self, findings: Findings, path: list[nn.Module], *, in_backward: bool) -> None:
        """Prepare.

        Args:
            findings: to be completed.
            path: the modules that are running, the innermost last; kept up by the caller.
            in_backward: a B is observed, in which checkpointing runs inner backwards.
        """
        super().__init__()
        self._findings = findings
        self._path = path
        self._in_backward = in_backward
        self._uses: Counter[int] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Torch calls this in place of `func`."""
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        self._note(func, args, kwargs)
        if func in COMPOSITES:
            with self:
                return opened(func)(*args, **kwargs)
        return func(*args, **kwargs)

    def _note(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if func is torch.autograd.grad or (
            func is torch.autograd.backward and not self._in_backward
        ):
            self._findings.runs_backward |= not in_function_transform()
            return
        rule = rule_for(func)
        if rule is None or self._in_backward:
            return
        if torch.is_grad_enabled():
            call = rule.bind(*args, **kwargs)
            if call is None or not can_apply(rule, call):
                return
            self._uses.update(id(p) for p in call.parameters if p is not None and p.requires_grad)
        caller = self._path[-1] if self._path else None
        self._findings.callers.add(None if self._may_run_again(caller) else caller)

    def _may_run_again(self, caller: nn.Module | None) -> bool:
        """Whether B may repeat a part of the caller's forward without calling the caller."""
        is_checkpointed = saving_hooks() is not None or not torch.is_grad_enabled()
        return is_checkpointed and type(caller) is not nn.Linear

    def compare_uses(self, outputs: Any) -> None:
        """Note the parameters of which autograd's graph has other uses than those with a rule."""
        tensors = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]
        edges = _edges_to_leaves(t.grad_fn for t in tensors if t.grad_fn is not None)
        mixed = {key for key, uses in self._uses.items() if edges[key] != uses}
        self._findings.mixed |= mixed


def _edges_to_leaves(nodes: Iterator[Any]) -> Counter[int]:
    """Number of edges of a graph that end in each leaf, by the leaf's id."""
    found: Counter[int] = Counter()
    to_visit = list(nodes)
    seen = set(to_visit)
    while to_visit:
        for following, _ in to_visit.pop().next_functions:
            if following is None:
                continue
            variable = getattr(following, "variable", None)
            if variable is not None:
                found[id(variable)] += 1
            elif following not in seen:
                seen.add(following)
                to_visit.append(following)
    return found
