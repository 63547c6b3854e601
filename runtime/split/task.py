"""One weight-gradient computation put off by B, and how its result joins `parameter.grad`."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from synth.errors import SynthError

from .rule import Call, Gradients, Rule


class WeightTask:
    """What W still has to do for one call.

    `owners` are the parameters themselves, of which `targets` are those that want a gradient; the
    call may hold raw tensors.
    """

    __slots__ = ("_call", "_grad", "_needs", "_rule", "targets")

    def __init__(
        self, rule: Rule, owners: Sequence[Tensor | None], call: Call, grad: Tensor
    ) -> None:
        self._rule = rule
        self._call: Call | None = call
        self._grad: Tensor | None = grad
        self._needs = tuple([owner is not None and owner.requires_grad for owner in owners])
        self.targets = [owner for owner in owners if owner is not None and owner.requires_grad]

    def run(self) -> list[Tensor]:
        """The gradients of `targets`, in that order; the task's own tensors are let go."""
        call, grad = self._call, self._grad
        assert call is not None and grad is not None
        self._call = self._grad = None
        gradients = self._rule.weight_gradients(grad, call, self._needs)
        found = [g for g, need in zip(gradients, self._needs, strict=False) if need]
        if len(gradients) != len(self._needs) or any([g is None for g in found]):
            raise _incomplete(self._rule, gradients, self._needs)
        return found  # type: ignore[return-value]


def _incomplete(rule: Rule, gradients: Gradients, needs: tuple[bool, ...]) -> SynthError:
    given = tuple(gradient is not None for gradient in gradients)
    return SynthError(
        f"{type(rule).__name__} gave weight gradients {given} where {needs} were needed (one "
        "for each parameter in its Call): return one entry per parameter, None if not needed"
    )


class Accumulator:
    """Adds gradients to `parameter.grad` in autograd's order, so that the bits agree.

    Autograd adds up what one backward yields for a parameter before it touches `.grad`; a
    parameter used more than once is therefore summed here first.
    """

    def __init__(self, tasks: Iterable[WeightTask], add: Callable[[Tensor, Tensor], None]) -> None:
        """Prepare for some tasks; `add` takes a parameter's sum."""
        self._add = add
        self._left = Counter(id(target) for task in tasks for target in task.targets)
        self._sums: dict[int, Tensor] = {}

    def add(self, parameter: Tensor, gradient: Tensor) -> None:
        """Take one gradient in; after the parameter's last one, `.grad` is up to date."""
        key = id(parameter)
        if key in self._sums:
            gradient = self._sums.pop(key).add_(gradient)
        self._left[key] -= 1
        if self._left[key]:
            self._sums[key] = gradient
        else:
            self._add(parameter, gradient)


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Assign to a missing `.grad` (in its dtype and the parameter's layout), else add in place."""
    total = parameter.grad
    if total is not None:
        total.add_(gradient)
        return
    gradient = gradient.to(gradient_dtype(parameter))
    if gradient.stride() != parameter.stride():  # `.grad` is laid out as its parameter
        gradient = torch.empty_like(parameter).copy_(gradient)
    parameter.grad = gradient


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    """Of `parameter.grad`, which may be wider than the parameter (`Tensor.grad_dtype`)."""
    found: torch.dtype | None = getattr(parameter, "grad_dtype", None)
    return parameter.dtype if found is None else found
