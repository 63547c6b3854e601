"""One weight-gradient computation put off by B, and how its result joins `parameter.grad`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.errors import SynthError

from .rule import Call, Gradients, Rule


@dataclass(slots=True, eq=False)
class WeightTask:
    """What W still has to do for one call: compute by `rule`, or only add what is there.

    `owners` are the parameters themselves; the call holds raw tensors.
    """

    rule: Rule
    owners: Sequence[Tensor | None]
    needs: tuple[bool, ...]
    call: Call | None = None
    grad: Tensor | None = None
    ready: Gradients = ()

    def targets(self) -> list[Tensor]:
        """The parameters that this task has a gradient for."""
        pairs = zip(self.owners, self.needs, strict=True)
        return [owner for owner, need in pairs if need and owner is not None]

    def run(self) -> list[Tensor]:
        """The gradients of `targets`, in that order; the task's own tensors are let go."""
        gradients = self.ready
        if self.call is not None and self.grad is not None:
            gradients = self.rule.weight_gradients(self.grad, self.call, self.needs)
        self.call, self.grad, self.ready = None, None, ()
        return _needed(self.rule, gradients, self.needs)


def _needed(rule: Rule, gradients: Gradients, needs: tuple[bool, ...]) -> list[Tensor]:
    given = tuple(gradient is not None for gradient in gradients)
    if len(given) != len(needs) or any(n and not g for n, g in zip(needs, given, strict=True)):
        raise SynthError(
            f"{type(rule).__name__} gave weight gradients {given} where {needs} were needed (one "
            "for each parameter in its Call): return one entry per parameter, None if not needed"
        )
    return [g for g, need in zip(gradients, needs, strict=True) if need and g is not None]


class Accumulator:
    """Adds gradients to `parameter.grad` in autograd's order, so that the bits agree.

    Autograd adds up what one backward yields for a parameter before it touches `.grad`; a
    parameter used more than once is therefore summed here first.
    """

    def __init__(self, tasks: Iterable[WeightTask]) -> None:
        self._left = Counter(id(owner) for task in tasks for owner in task.targets())
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
            accumulate(parameter, gradient)


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Assign to a missing `.grad` (in the parameter's dtype and layout), else add in place."""
    if parameter.grad is not None:
        parameter.grad.add_(gradient)
        return
    gradient = gradient.to(parameter.dtype)
    if gradient.stride() != parameter.stride():  # `.grad` is laid out as its parameter
        gradient = torch.empty_like(parameter).copy_(gradient)
    parameter.grad = gradient
