"""Optimizer state of each parameter: of this project's optimizers, or any of torch's."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from synth.errors import SynthError

from ..execution.weights.shared_tensor import SharedParameter
from ..optimize import StageSteps, zero_gradient


class OptimizerState(Protocol):
    """The state of an optimizer, by parameter."""

    def finish(self) -> None:
        """Make the last step final, before anything is read."""
        ...

    def of(self, parameter: nn.Parameter) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the tensor that is updated for a parameter, and its state by name."""
        ...

    def allocate(self) -> None:
        """Allocate state for each trainable parameter, before a checkpoint is loaded into it."""
        ...

    def forget(self, parameter: nn.Parameter) -> None:
        """Reset a parameter's state, of which the checkpoint has none."""
        ...

    def loaded(self) -> None:
        """Called after the state was written to."""
        ...


def optimizer_state_of(
    optimizer: StageSteps | Optimizer, shared: Mapping[nn.Parameter, SharedParameter] | None = None
) -> OptimizerState:
    """Return the state of a rank's optimizer.

    Args:
        optimizer: the steps of `build_steps`, or one of torch's.
        shared: the parameters that the steps update as parts of flat ones; None: there are none.

    Raises:
        SynthError: one of torch's optimizers updates parts of parameters.
    """
    if isinstance(optimizer, Optimizer):
        if shared:
            raise SynthError(
                "several ranks, or the host's memory, keep the stages of this schedule, whose "
                "parameters one of torch's optimizers knows as flat parts; checkpoints need the "
                "steps of build_steps"
            )
        return _OfTorch(optimizer)
    return _OfShares(optimizer, shared) if shared else _OfSteps(optimizer)


class _OfSteps:
    def __init__(self, steps: StageSteps) -> None:
        self._steps = steps
        self._weights = {w.live: w for each in steps.optimizers.values() for w in each.weights}

    def finish(self) -> None:
        self._steps.finish()

    def of(self, parameter: nn.Parameter) -> tuple[Tensor, Mapping[str, Tensor]]:
        weight = self._weights.get(parameter)
        return (parameter, {}) if weight is None else (weight.master, weight.state)

    def allocate(self) -> None:
        """Do nothing: the state exists from the start."""

    def forget(self, parameter: nn.Parameter) -> None:
        weight = self._weights.get(parameter)
        for tensor in {} if weight is None else weight.state.values():
            tensor.zero_()

    def loaded(self) -> None:
        for optimizer in self._steps.optimizers.values():
            optimizer.show()


class _OfShares(_OfSteps):
    """The state of flat parts, as tensors of the parameters that are spread over them."""

    def __init__(self, steps: StageSteps, shared: Mapping[nn.Parameter, SharedParameter]) -> None:
        super().__init__(steps)
        self._shared = shared

    def of(self, parameter: nn.Parameter) -> tuple[Tensor, Mapping[str, Tensor]]:
        shared = self._shared.get(parameter)
        if shared is None:
            return super().of(parameter)
        flat, state = super().of(shared.part)
        # Counts are of the whole part.
        spread = {name: x if not x.dim() else shared.within(x) for name, x in state.items()}
        return shared.within(flat.detach()), spread

    def forget(self, parameter: nn.Parameter) -> None:
        for tensor in self.of(parameter)[1].values():
            tensor.zero_()


class _OfTorch:
    """The state of one of torch's optimizers, under the same names as that of `_OfSteps`.

    Only existing state is saved: an optimizer has none for a parameter that took no step yet, and
    making some would change its first step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def finish(self) -> None:
        """Do nothing: its steps are final."""

    def of(self, parameter: nn.Parameter) -> tuple[Tensor, Mapping[str, Tensor]]:
        state = self._optimizer.state.get(parameter, {})
        for name, value in state.items():
            if value is not None and not isinstance(value, Tensor):
                raise SynthError(
                    f"{type(self._optimizer).__name__} keeps {name} as a "
                    f"{type(value).__name__}; only what optimizers keep as tensors can be saved"
                )
        return parameter, {name: value for name, value in state.items() if value is not None}

    def allocate(self) -> None:
        groups = self._optimizer.param_groups
        trainable = [p for group in groups for p in group["params"] if p.requires_grad]
        if not all(self._optimizer.state.get(p) for p in trainable):
            _allocate(self._optimizer)

    def forget(self, parameter: nn.Parameter) -> None:
        self._optimizer.state.pop(parameter, None)

    def loaded(self) -> None:
        """Do nothing: the tensors are the optimizer's own."""


def _allocate(optimizer: Optimizer) -> None:
    """Let one of torch's optimizers make its state, by a step with learning rate 0.

    That leaves traces in the state (counts, Rprop's signs, momentum without dampening), so all of
    it has to be loaded or reset.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    parameters = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
    gradients = [p.grad for p in parameters]
    try:
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros_like(r) if isinstance(r := group["lr"], Tensor) else 0.0
        for parameter in parameters:
            parameter.grad = zero_gradient(parameter)
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
