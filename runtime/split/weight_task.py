"""One weight-gradient computation deferred by B, and how its result joins `parameter.grad`."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from synth.errors import SynthError

from .derived import DerivedWeight
from .regions import add_to_region, is_transpose, key_of, leaf_of
from .rule import Call, Gradients, Rule


class WeightTask:
    """The work that W has left to do for one call.

    `owners` are the parameters themselves. `targets` are those of them that want a gradient, with a
    parameter in the place of its transpose; the call may hold raw tensors.
    """

    __slots__ = ("_call", "_grad", "_needs", "_rule", "_turned", "targets")

    def __init__(
        self, rule: Rule, owners: Sequence[Tensor | DerivedWeight | None], call: Call, grad: Tensor
    ) -> None:
        self._rule = rule
        self._call: Call | None = call
        self._grad: Tensor | None = grad
        self._needs = tuple([owner is not None and owner.requires_grad for owner in owners])
        targets = [owner for owner in owners if owner is not None and owner.requires_grad]
        self._turned = [isinstance(t, Tensor) and is_transpose(t) for t in targets]
        self.targets: list[Any] = [
            leaf_of(target) if turned and isinstance(target, Tensor) else target
            for target, turned in zip(targets, self._turned, strict=True)
        ]

    @property
    def leaves(self) -> list[Tensor]:
        """The parameters that the gradients end up in."""
        found: list[Tensor] = []
        for target in self.targets:
            found += target.leaves if isinstance(target, DerivedWeight) else [leaf_of(target)]
        return found

    @property
    def reads_weights(self) -> bool:
        """True if the computation reads parameters."""
        return self._rule.reads_weights_in_w

    def run(self) -> list[Tensor]:
        """The gradients of `targets`, in that order; the task's own tensors are let go."""
        call, grad = self._call, self._grad
        assert call is not None and grad is not None
        self._call = self._grad = None
        gradients = self._rule.weight_gradients(grad, call, self._needs)
        found = [g for g, need in zip(gradients, self._needs, strict=False) if need]
        if len(gradients) != len(self._needs) or any([g is None for g in found]):
            raise _incomplete(self._rule, gradients, self._needs)
        pairs = zip(found, self._turned, strict=True)
        return [g.t() if turned else g for g, turned in pairs]  # type: ignore[union-attr, misc]


def _incomplete(rule: Rule, gradients: Gradients, needs: tuple[bool, ...]) -> SynthError:
    given = tuple(gradient is not None for gradient in gradients)
    return SynthError(
        f"{type(rule).__name__} gave weight gradients {given} where {needs} were needed (one "
        "for each parameter in its Call): return one entry per parameter, None if not needed"
    )


class Accumulator:
    """Adds gradients to `parameter.grad` in autograd's order, so that the bits agree.

    Autograd sums the gradients of one backward for a parameter before it adds them to `.grad`.
    Therefore a parameter used more than once is first summed here.
    """

    def __init__(self, tasks: Iterable[WeightTask], add: Callable[[Any, Tensor], None]) -> None:
        """Prepare for some tasks; `add` takes a parameter's sum."""
        self._add = add
        self._left = Counter(key_of(target) for task in tasks for target in task.targets)
        self._sums: dict[Hashable, Tensor] = {}

    def add(self, parameter: Any, gradient: Tensor) -> None:
        """Take one gradient in; after the parameter's last one, `.grad` is up to date."""
        key = key_of(parameter)
        if key in self._sums:
            gradient = self._sums.pop(key).add_(gradient)
        self._left[key] -= 1
        if self._left[key]:
            self._sums[key] = gradient.contiguous() if _is_expanded(gradient) else gradient
        else:
            self._add(parameter, gradient)


def _is_expanded(gradient: Tensor) -> bool:
    """True if elements share memory, as of a weight that an `einsum` sums over."""
    return gradient.layout == torch.strided and 0 in gradient.stride()


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Assign to a missing `.grad` (in its dtype and the parameter's layout), else add in place."""
    if not parameter.is_leaf:
        _accumulate_region(parameter, gradient)
        return
    total = parameter.grad
    if total is not None:
        if total.is_sparse:  # autograd's part of the gradient of a sparse embedding
            parameter.grad = gradient + total
        else:
            total.add_(gradient)
        return
    gradient = gradient.to(gradient_dtype(parameter))
    if gradient.stride() != parameter.stride():  # `.grad` is laid out as its parameter
        gradient = torch.empty_like(parameter).copy_(gradient)
    parameter.grad = gradient


def _accumulate_region(region: Tensor, gradient: Tensor) -> None:
    leaf = leaf_of(region)
    if leaf.grad is None:
        leaf.grad = torch.zeros_like(leaf, dtype=gradient_dtype(leaf))
    add_to_region(leaf.grad, region, gradient)


class Gathering:
    """Gathers the regions of each parameter that is listened to, and delivers their sum once."""

    def __init__(
        self, tasks: Iterable[WeightTask], deliver: Callable[[Tensor, Tensor], None]
    ) -> None:
        """Prepare for some tasks; `deliver` takes a whole gradient."""
        self._deliver = deliver
        targets = (target for task in tasks for target in task.targets)
        parts = {key_of(target): target for target in targets if isinstance(target, Tensor)}
        self._left = Counter(id(leaf_of(target)) for target in parts.values())
        self._sums: dict[int, Tensor] = {}

    def add(self, target: Tensor, gradient: Tensor) -> None:
        """Take the sum of one part's gradients in; after a parameter's last, it is delivered."""
        leaf = leaf_of(target)
        key = id(leaf)
        self._left[key] -= 1
        if target is leaf and not self._left[key] and key not in self._sums:
            self._deliver(leaf, gradient)
            return
        if key not in self._sums:
            self._sums[key] = torch.zeros_like(leaf)
        add_to_region(self._sums[key], target, gradient)
        if not self._left[key]:
            self._deliver(leaf, self._sums.pop(key))


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """The dtype of `parameter.grad`, perhaps wider than the parameter (`Tensor.grad_dtype`)."""
    found: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if found is None else found
