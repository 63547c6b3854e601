"""Update rules: torch's fused kernels, in place on lists of tensors.

They work element by element, so that updating a tensor in pieces gives the same bits as at once.
Pieces start at multiples of a cache line, as the kernels' own do.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from synth.errors import SynthError
from synth.profile.optimizer import OptimizerKind, OptimizerSpec

from .settings import StepSettings


class UpdateRule(Protocol):
    """The arithmetic by which gradients and moments update parameters."""

    moments: tuple[str, ...]
    """The names of state tensors of a parameter's shape, as in torch.optim."""

    counts: bool
    """True if it also counts a parameter's steps."""

    def update(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        counts: Sequence[Tensor],
        settings: StepSettings,
        found_inf: Tensor | None = None,
    ) -> None:
        """Update parameters, moments and counts in place.

        Args:
            parameters: the parameters of one device and dtype.
            gradients: one for each.
            moments: for each name in `moments`, one for each parameter.
            counts: scalars, one for each parameter, if the rule counts.
            found_inf: float32 scalar on the device; 1: leave everything as it is.

        Raises:
            SynthError: Nesterov momentum is asked of an optimizer that has none.
        """
        ...

    def direction(
        self, moments: Sequence[Tensor], count: Tensor | None, settings: StepSettings
    ) -> Tensor:
        """The last update of a parameter, divided by the learning rate; it was subtracted.

        Does not wait for the device. Before the first update it is zero.

        Args:
            moments: one for each name in `moments`, of one parameter.
            count: its steps, a scalar, if the rule counts.
        """
        ...


class AdamWRule:
    """Loshchilov and Hutter, arXiv 1711.05101."""

    moments: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    counts = True

    def update(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        counts: Sequence[Tensor],
        settings: StepSettings,
        found_inf: Tensor | None = None,
    ) -> None:
        if settings.nesterov:
            raise SynthError("Nesterov momentum is for sgd with momentum; this optimizer is adamw")
        adamw(
            _real(parameters),
            _real(gradients),
            _real(moments[0]),
            _real(moments[1]),
            [],
            list(counts),
            fused=True,
            found_inf=found_inf,
            amsgrad=False,
            beta1=settings.betas[0],
            beta2=settings.betas[1],
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            maximize=False,
        )

    def direction(
        self, moments: Sequence[Tensor], count: Tensor | None, settings: StepSettings
    ) -> Tensor:
        """See `UpdateRule`; weight decay is left out."""
        assert count is not None
        # In float64, as 1 - 0.999 has few digits in float32. Without steps the moments are zero.
        steps = count.double().clamp(min=1)
        first, second = (
            moment / (1 - beta**steps) for moment, beta in zip(moments, settings.betas, strict=True)
        )
        return first / (second.sqrt() + settings.eps)


class SgdRule:
    """Stochastic gradient descent, with momentum or without."""

    counts = False

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self.moments: tuple[str, ...] = ("momentum_buffer",) if momentum else ()

    def update(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        counts: Sequence[Tensor],
        settings: StepSettings,
        found_inf: Tensor | None = None,
    ) -> None:
        if settings.nesterov and not moments:
            raise SynthError("Nesterov momentum is for sgd with momentum; give sgd:0.9")
        buffers: list[Tensor | None] = [*_real(moments[0])] if moments else [None] * len(parameters)
        sgd(
            _real(parameters),
            _real(gradients),
            buffers,
            fused=True,
            found_inf=found_inf,
            weight_decay=settings.weight_decay,
            momentum=self._momentum,
            lr=settings.learning_rate,
            dampening=0.0,
            nesterov=settings.nesterov,
            maximize=False,
        )

    def direction(
        self, moments: Sequence[Tensor], count: Tensor | None, settings: StepSettings
    ) -> Tensor:
        return moments[0]


def _real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return views of complex tensors as real ones, whose two parts torch updates alike."""
    return [torch.view_as_real(t) if t.is_complex() else t for t in tensors]


def rule_of(spec: OptimizerSpec) -> UpdateRule:
    """The arithmetic of an optimizer."""
    if spec.kind == OptimizerKind.ADAMW:
        return AdamWRule()
    return SgdRule(spec.momentum)


def new_state(rule: UpdateRule, updated: Tensor) -> Mapping[str, Tensor]:
    """Return the state of a tensor before its first step: zeros."""
    state = {name: torch.zeros_like(updated) for name in rule.moments}
    if rule.counts:
        state["step"] = torch.zeros((), dtype=torch.float32, device=updated.device)
    return state
