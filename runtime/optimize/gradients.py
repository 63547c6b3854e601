"""A rank's gradients: allocated once, zeroed in place, scaled in place."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Owned = Callable[[nn.Parameter], bool]


class Gradients:
    """Of the trainable parameters of a rank's modules, in the modules' order."""

    def __init__(self, modules: Mapping[int, nn.Module], owned: Owned | None = None) -> None:
        """Find them.

        Args:
            modules: a rank's stages.
            owned: whether this rank counts a parameter in the global norm, which must count each
                one of the model once: of copies on several ranks (replicas, tied weights) one
                rank's. None: all are this rank's own.
        """
        trainable = [p for m in modules.values() for p in m.parameters() if p.requires_grad]
        self._parameters = list(dict.fromkeys(trainable))
        self._owned = [p for p in self._parameters if owned is None or owned(p)]
        self._consumed = True

    def open(self) -> None:
        """Zero what a step has used; what accumulates for a step to come stays."""
        if not self._consumed:
            return
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()
        self._consumed = False

    def consume(self) -> None:
        """Say that a step has used them: the next `open` zeroes."""
        self._consumed = True

    def counted(self) -> list[Tensor]:
        """Those that this rank contributes to the global norm."""
        return [p.grad for p in self._owned if p.grad is not None]

    @torch.no_grad()
    def scale(self, factor: Tensor) -> None:
        """Multiply all by a scalar."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
