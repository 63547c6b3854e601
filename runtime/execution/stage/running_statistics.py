"""Buffers that forwards change, such as the running means of batch norm: changed once per F.

R runs a forward again to rebuild activations. It gets copies of these buffers, which are dropped
afterwards. Autograd sees no in-place change of buffers that it saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RunningStatistics:
    """The buffers of a module that its forwards change, found by observing a forward.

    The first forward with each combination of `training` flags is observed, because batch norm
    changes nothing in `eval` mode.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changed: dict[tuple[nn.Module, str], None] = {}
        self._watched_modes: set[tuple[bool, ...]] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Find the buffers that the forward in the `with` block changes, once per mode."""
        mode = tuple(part.training for part in self._module.modules())
        if mode in self._watched_modes:
            yield
            return
        before = [(part, name, b.detach().clone()) for part, name, b in _buffers(self._module)]
        yield
        self._watched_modes.add(mode)
        for part, name, old in before:
            if _differs(part._buffers[name], old):
                self._changed[part, name] = None

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers that forwards change, as they are in the module now, perhaps as copies."""
        found = (module._buffers[name] for module, name in self._changed)
        return [buffer for buffer in found if buffer is not None]

    @contextmanager
    def stood_in_for(self) -> Iterator[None]:
        """Replace the buffers by copies within the block."""
        own = [(module, name, module._buffers[name]) for module, name in self._changed]
        for module, name, buffer in own:
            module._buffers[name] = None if buffer is None else buffer.detach().clone()
        try:
            yield
        finally:
            for module, name, buffer in own:
                module._buffers[name] = buffer


def _buffers(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None:
                yield part, name, buffer


def _differs(buffer: Tensor | None, old: Tensor) -> bool:
    same = buffer is not None and buffer.shape == old.shape and torch.equal(buffer, old)
    return not same
