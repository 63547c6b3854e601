"""Layers one after another as one module."""

from collections.abc import Sequence
from typing import Any

from torch import nn


class LayerChain(nn.Module):
    """Layers one after another, each given the output of the previous one, as stages are."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs: Any, targets: Any = None) -> Any:
        """Run the layers; targets are the last argument of the last one."""
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            given = inputs if targets is None or i < last else (*inputs, targets)
            output = self.call(i, layer, given)
            inputs = tuple(output) if isinstance(output, tuple | list) else (output,)
        return output

    def call(self, index: int, layer: nn.Module, arguments: tuple[Any, ...]) -> Any:
        """Run one layer."""
        return layer(*arguments)
