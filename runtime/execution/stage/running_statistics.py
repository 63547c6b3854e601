"""Buffers that forwards change, such as the running means of batch norm: changed once by each.

A forward that is run once more to rebuild what it saved finds copies in their place, and the copies
are dropped with what it rebuilt. Autograd sees no change in place of what it saved before.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RunningStatistics:
    """Those of a module, known once a forward has shown which they are.

    A forward is watched if it is the first one with this combination of `training` flags: batch
    norm changes nothing in `eval` mode, and may be in it for a while.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changed: dict[tuple[nn.Module, str], None] = {}
        self._watched_modes: set[tuple[bool, ...]] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, the first forward of each mode shows which buffers it changes."""
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
        """Those that forwards change, as the module has them now: its own, or copies."""
        found = (module._buffers[name] for module, name in self._changed)
        return [buffer for buffer in found if buffer is not None]

    @contextmanager
    def stood_in_for(self) -> Iterator[None]:
        """Within it, a forward changes copies of them."""
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
