"""Optimizer state of each parameter: of this project's optimizers, or any of torch's."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from synth.errors import SynthError
from synth.units import shown

from ..execution.weights.shared_tensor import SharedParameter
from ..optimize import StageSteps, zero_gradient
from .errors import Damaged
from .nested_values import NotStorable, decode, encode


class SavedState(NamedTuple):
    """The state of a parameter in a checkpoint: shapes and dtypes of its tensors, and the rest."""

    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    values: Mapping[str, Any]


class OptimizerState(Protocol):
    """The state of an optimizer, by parameter."""

    def finish(self) -> None:
        """Make the last step final, before anything is read."""
        ...

    def of(self, parameter: nn.Parameter) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the tensor that is updated for a parameter, and its state by name."""
        ...

    def values_of(self, parameter: nn.Parameter) -> Mapping[str, Any]:
        """Return the parameter's state that is no tensor, as JSON (`nested_values`), by name."""
        ...

    @property
    def is_joint(self) -> bool:
        """True if the state at one parameter may be of all parameters of the rank together."""
        ...

    def adopt(self, parameter: nn.Parameter, saved: SavedState) -> None:
        """Give a parameter's state the form of a saved one; its tensors are still to be loaded."""
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

    def values_of(self, parameter: nn.Parameter) -> Mapping[str, Any]:
        return {}

    @property
    def is_joint(self) -> bool:
        return False

    def adopt(self, parameter: nn.Parameter, saved: SavedState) -> None:
        """Do nothing: all state is tensors."""

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
        return parameter, self._split(parameter)[0]

    def values_of(self, parameter: nn.Parameter) -> Mapping[str, Any]:
        return self._split(parameter)[1]

    def _split(self, parameter: nn.Parameter) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors of a parameter's state, also nested ones, and what is no tensor."""
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        for name, value in self._optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[name] = value
            elif value is not None or self.is_joint:
                try:
                    values[name] = encode(value, name, tensors)
                except NotStorable as error:
                    raise SynthError(
                        f"{type(self._optimizer).__name__} keeps {name} as a {error}; a "
                        f"checkpoint holds tensors, numbers, texts, and lists, tuples and dicts "
                        f"of them"
                    ) from None
        return tensors, values

    @property
    def is_joint(self) -> bool:
        """True of an optimizer whose step needs a closure: LBFGS keeps all at one parameter."""
        closure = inspect.signature(self._optimizer.step).parameters.get("closure")
        return closure is not None and closure.default is inspect.Parameter.empty

    def adopt(self, parameter: nn.Parameter, saved: SavedState) -> None:
        own = self._optimizer.state.get(parameter, {})
        found = self._split(parameter)[0]

        def tensor_of(name: str) -> Tensor:
            if name not in saved.tensors:
                raise Damaged(f"the manifest is damaged: there is no tensor {shown(name)}")
            shape, dtype = saved.tensors[name]
            here = found.get(name)
            fits = here is not None and tuple(here.shape) == shape
            return here if fits else torch.empty(shape, dtype=dtype, device=parameter.device)  # type: ignore[return-value]

        for name, value in saved.values.items():
            if name in own or self.is_joint:
                self._optimizer.state[parameter][name] = decode(value, tensor_of)
        for name in saved.tensors:
            is_whole = "." not in name and name not in saved.values
            if is_whole and (self.is_joint or (name in own and not isinstance(own[name], Tensor))):
                self._optimizer.state[parameter][name] = tensor_of(name)

    def allocate(self) -> None:
        if self.is_joint:
            return  # it has a form once it has stepped
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
