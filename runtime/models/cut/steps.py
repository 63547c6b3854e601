"""Steps of a recorded forward: calls of modules and functions, with references to tensors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class TensorRef:
    """A tensor that depends on inputs or parameters, by its number in the recording."""

    number: int


@dataclass(frozen=True)
class ConstantRef:
    """A tensor that depends on neither, such as a mask or a table of angles, by its number."""

    number: int


@dataclass(frozen=True)
class ParameterRef:
    """A parameter, or buffer with a checkpoint, used outside of the modules, by its name."""

    name: str


@dataclass(frozen=True)
class DeviceRef:
    """The device on which the recorded code runs."""


@dataclass(frozen=True)
class RecordedCall:
    """A call of a module or of a function.

    Attributes:
        module: the name of the module in the model; None for a function.
        function: the function; None for a module.
        leaves: those of the arguments, where tensors and devices are references.
        spec: the tree of the leaves, of positional arguments and keywords.
        outputs: the numbers of the values that it gives, by the places among its output's leaves.
        fills: True if it changes containers in its arguments, whose leaves follow its output's.
        mutated: the numbers of the values that it changes in place.
        with_grad: False if it was called within `no_grad`.
        autocast: the dtype of an autocast that the model's code turned on; False: the code turned
            it off; None: it is as outside of the model.
        in_mode: True if it may differ between training and evaluation.
        place: the line of the model's code, of a call that changes values in place.
    """

    module: str | None
    function: Callable[..., Any] | None
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    outputs: tuple[tuple[int, int], ...]
    fills: bool = False
    mutated: tuple[int, ...] = ()
    with_grad: bool = True
    autocast: torch.dtype | Literal[False] | None = None
    in_mode: bool = False
    place: str = ""

    def reads(self) -> Iterator[int]:
        """Yield the numbers of the values among its arguments."""
        return (leaf.number for leaf in self.leaves if isinstance(leaf, TensorRef))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters among its arguments."""
        return tuple(leaf.name for leaf in self.leaves if isinstance(leaf, ParameterRef))


@dataclass(frozen=True)
class RecordedForward:
    """One forward of a whole model with its loss.

    Attributes:
        steps: in the order of their calls.
        inputs: the numbers of the input tensors.
        targets: the numbers of the target tensors.
        constants: the tensors that depend on no input and no parameter.
        shapes: of each value, by its number.
        storages: equal numbers for values that share memory, by their number.
    """

    steps: tuple[RecordedCall, ...]
    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    loss: int
    constants: tuple[Tensor, ...]
    shapes: tuple[str, ...]
    storages: tuple[int, ...]
