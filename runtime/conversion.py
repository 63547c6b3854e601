"""Converts a model's floating-point parameters and buffers to the workload's dtype."""

from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn


@dataclass
class Conversion:
    """Converts modules to a dtype, and remembers what was converted and what was kept.

    `Module.to` would convert complex numbers as well, and drop their imaginary parts (tables of
    rotary angles). They, whole numbers, and weights of 8 bits and fewer stay as they are.
    """

    dtype: torch.dtype
    _converted: set[torch.dtype] = field(default_factory=set, init=False)
    _kept: dict[str, torch.dtype] = field(default_factory=dict, init=False)

    def apply(self, module: nn.Module) -> nn.Module:
        """Convert a module in place, and return it; tied parameters stay tied."""
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            if not _is_convertible(tensor):
                self._kept[name] = tensor.dtype
            elif tensor.dtype != self.dtype:
                self._converted.add(tensor.dtype)
        module._apply(self._of)  # type: ignore[no-untyped-call]  # as `Module.to` does
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


def _is_convertible(tensor: Tensor) -> bool:
    """True for real floating-point numbers that are not quantised."""
    return tensor.is_floating_point() and tensor.dtype.itemsize > 1


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
