"""One kind of module, and what its gradients must be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Callable[[torch.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A kind of module.

    Attributes:
        name: of the kind.
        build: makes the module; called twice, from the same random state.
        inputs: draws what it is called with; the first may get a gradient.
        deferred: the least share of its trainable elements whose gradients wait for W.
        reason: the reason why gradients equal autograd's to rounding only; None: bit for bit.
        prepare: registers hooks on the module, and returns what has to be kept alive.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    deferred: float = 0.0
    reason: str | None = None
    prepare: Callable[[nn.Module], Any] | None = None


class Wrapped(nn.Module):
    """A module called in a special way."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._call = call

    def forward(self, *arguments: Any) -> Any:
        return self._call(self.module, *arguments)


class Weights(nn.Module):
    """Parameters of given shapes, and a function of them and of the inputs."""

    def __init__(
        self, call: Callable[..., Any], dtype: torch.dtype, *shapes: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.own = nn.ParameterList(torch.randn(shape, dtype=dtype) / 2 for shape in shapes)
        self._call = call

    def forward(self, *arguments: Any) -> Any:
        return self._call(*self.own, *arguments)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Inputs:
    """One tensor of normal numbers."""
    return lambda generator: (torch.randn(shape, generator=generator, dtype=dtype),)


def tokens(*shape: int, most: int = 16) -> Inputs:
    """Token ids."""
    return lambda generator: (torch.randint(most, shape, generator=generator),)


def squared(output: Any) -> Tensor:
    """A loss that every tensor of an output has a part in."""
    from torch.utils import _pytree as pytree

    found = [t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)]
    total = [
        t.abs().float().pow(2).mean() for t in found if t.is_floating_point() or t.is_complex()
    ]
    return torch.stack(total).sum()
