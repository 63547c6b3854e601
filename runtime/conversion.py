"""Converts a model's floating-point parameters and buffers to the workload's dtype."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn

from synth.errors import SynthError


@dataclass
class Conversion:
    """Converts modules to a dtype, and remembers what was converted and what was kept.

    `Module.to` would convert complex numbers as well, and drop their imaginary parts (tables of
    rotary angles). They, whole numbers, and weights of 8 bits and fewer stay as they are. A module
    whose class has a `to` of its own, which may keep parameters in float32, is converted by it.
    """

    dtype: torch.dtype
    _converted: set[torch.dtype] = field(default_factory=set, init=False)
    _kept: dict[str, torch.dtype] = field(default_factory=dict, init=False)

    def apply(self, module: nn.Module) -> nn.Module:
        """Convert a module in place, and return it; tied parameters stay tied.

        Raises:
            SynthError: the module's own `to` converts what has to stay as it is.
        """
        before = {name: (x.dtype, _is_convertible(x)) for name, x in _tensors(module)}
        if type(module).to is nn.Module.to:
            module._apply(self._of)  # type: ignore[no-untyped-call]  # as `Module.to` does
        else:
            module.to(self.dtype)
        for name, tensor in _tensors(module):
            dtype, is_convertible = before.get(name, (tensor.dtype, True))
            if tensor.dtype == dtype != self.dtype:
                self._kept[name] = dtype
            elif tensor.dtype != dtype and is_convertible:
                self._converted.add(dtype)
            elif tensor.dtype != dtype:
                raise SynthError(
                    f"{type(module).__name__}.to converts {name} of {_name(dtype)} to "
                    f"{_name(tensor.dtype)}, which loses its values: leave {name} as it is there"
                )
        return module

    def _of(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if _is_convertible(tensor) else tensor

    @property
    def described(self) -> str | None:
        """Say what was converted and what was kept; None if all was in this dtype."""
        if not self._converted:
            return None
        sources = " and ".join(sorted(map(_name, self._converted)))
        kept = ", ".join(f"{name} ({_name(dtype)})" for name, dtype in sorted(self._kept.items()))
        text = f"parameters and buffers of {sources} were converted to {_name(self.dtype)}"
        return f"{text}; kept as they are: {kept}" if kept else text


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers with their names."""
    return chain(module.named_parameters(), module.named_buffers())


def _is_convertible(tensor: Tensor) -> bool:
    """True for real floating-point numbers that are not quantised."""
    return tensor.is_floating_point() and tensor.dtype.itemsize > 1


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
