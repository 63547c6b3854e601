"""Weights of a step's micro-batch losses, and collectors of the last stage's results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from synth.errors import SynthError

from .boundary import settled
from .stage_protocol import OutputTap

Weights = Sequence[float | Tensor] | Tensor


@dataclass(frozen=True)
class LossTerms:
    """The loss of a step: the sum over its micro-batches of `weights[m]` times their losses.

    Attributes:
        weights: one per micro-batch; those that are tensors are not read by the host.
        scale: `GradScaler.scale`, applied to the gradients that backwards start from, and not to
            the loss; None: no scaling.
        losses: receives the unweighted loss of each micro-batch; None: not wanted.
        outputs: receives the output of the last stage's module for each; None: not wanted.
        with_loss: False: only outputs are wanted, and no loss is computed.
        updates: the number of updates of the step. The weights are those of the gradients of each
            update, and the loss of the step is the mean over its updates.
    """

    weights: Sequence[float | Tensor]
    scale: Callable[[Tensor], Tensor] | None = None
    losses: list[Any] | None = None
    outputs: list[Any] | None = None
    with_loss: bool = True
    updates: int = 1

    @classmethod
    def of(
        cls,
        num_micro_batches: int,
        weight: float = 1.0,
        weights: Weights | None = None,
        *,
        updates: int = 1,
        **options: Any,
    ) -> Self:
        """Make terms for `weight` times the mean, or times the sum weighted by `weights`.

        With several updates both are those of each update's own micro-batches.

        Raises:
            SynthError: the number of weights differs from the number of micro-batches; a weight is
                no number; results are to be kept in something else than a list.
        """
        for name in ("losses", "outputs"):
            if not isinstance(options.get(name), list | None):
                raise SynthError(
                    f"{name} is a {type(options[name]).__name__}; give a list, which is then filled"
                )
        _check_number("weight", weight)
        if weights is None:
            each = weight * (1.0 / (num_micro_batches // updates))
            return cls((each,) * num_micro_batches, updates=updates, **options)
        if isinstance(weights, Tensor):
            weights = list(weights.detach().unbind()) if weights.dim() else ()
        if not hasattr(weights, "__len__") or isinstance(weights, str | Mapping):
            raise SynthError(
                f"weights is a {type(weights).__name__}; give a list or a tensor with a number for "
                f"each of the {num_micro_batches} micro-batches, or `weight` for a single factor"
            )
        if len(weights) != num_micro_batches:
            raise SynthError(
                f"{len(weights)} weights were given for {num_micro_batches} micro-batches; give "
                f"one for each, or leave them out for the mean"
            )
        for j, factor in enumerate(weights):
            _check_number(f"weights[{j}]", factor)
        return cls([weight * factor for factor in weights], updates=updates, **options)

    def begin(self, *, holds_last: bool) -> None:
        """Empty the lists; if this rank holds the last stage, they get an entry per micro-batch."""
        for kept in (self.losses, self.outputs):
            if kept is not None:
                kept[:] = [None] * len(self.weights) if holds_last else []

    def tap(self, microbatch: int, *, copied: bool) -> OutputTap | None:
        """Return a tap for a micro-batch's output; None if it is not wanted."""
        if self.outputs is None:
            return None
        return OutputTap(partial(self._keep, self.outputs, microbatch, copied), self.with_loss)

    def add(self, total: Tensor, loss: Tensor, microbatch: int) -> None:
        """Add a micro-batch's weighted loss to the total; NaN does not count with weight 0.

        Such is the mean over the tokens of a micro-batch that has none.
        """
        if self.losses is not None:
            self.losses[microbatch] = loss.reshape(())
        weight = self.weights[microbatch]
        if isinstance(weight, Tensor):
            part = loss.reshape(()) * weight / self.updates
            total.add_(torch.where((weight == 0).to(part.device), 0.0, part))
        elif weight:
            total.add_(loss.reshape(()), alpha=weight / self.updates)

    def seed(self, loss: Tensor, microbatch: int) -> Tensor:
        """The gradient of the scaled loss of the step or update by a micro-batch's loss."""
        weight = self.weights[microbatch]
        if self.scale is None and not isinstance(weight, Tensor):
            return torch.full_like(loss, weight)
        # A weight may be too small for float16 until it is scaled.
        wide = torch.ones_like(loss, dtype=torch.promote_types(loss.dtype, torch.float32)) * weight
        return (wide if self.scale is None else self.scale(wide)).to(loss.dtype)

    @staticmethod
    def _keep(outputs: list[Any], microbatch: int, copied: bool, output: Any) -> None:
        def detached(tensor: Tensor) -> Tensor:
            kept = settled(tensor.detach())
            return kept.clone() if copied else kept

        outputs[microbatch] = pytree.tree_map_only(Tensor, detached, output)


def _check_number(name: str, value: object) -> None:
    """Refuse what is neither a number nor a tensor with one."""
    is_one = isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0)
    if not is_one:
        given = f"of shape {list(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.40}"
        raise SynthError(
            f"{name} is a {type(value).__name__} {given}; give a number, or a tensor without "
            f"dimensions"
        )
