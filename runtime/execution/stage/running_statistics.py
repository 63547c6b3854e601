"""Buffers that forwards change, such as the running means of batch norm: changed once per F.

R runs a forward again to rebuild activations. It gets copies of these buffers as F found them,
which are dropped afterwards. Autograd sees no in-place change of buffers that it saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Buffers = dict[tuple[nn.Module, str], Tensor | None]


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
    def watched(self) -> Iterator[Buffers]:
        """Find the buffers that the forward in the `with` block changes, once per mode.

        Afterwards the value has them as the forward found them.
        """
        mode = tuple(part.training for part in self._module.modules())
        is_first = mode not in self._watched_modes
        places = [each[:2] for each in _buffers(self._module)] if is_first else self._changed
        before = {place: _copied(place[0]._buffers[place[1]]) for place in places}
        found: Buffers = {}
        yield found
        self._watched_modes.add(mode)
        for (part, name), old in before.items():
            if (part, name) in self._changed or _differs(part._buffers[name], old):
                self._changed[part, name] = None
                found[part, name] = old

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers that forwards change, as they are in the module now, perhaps as copies."""
        found = (module._buffers[name] for module, name in self._changed)
        return [buffer for buffer in found if buffer is not None]

    @contextmanager
    def stood_in_for(self, found: Buffers | None = None) -> Iterator[None]:
        """Replace the buffers by copies within the block, as a forward found them."""
        found = found or {}
        own = [(module, name, module._buffers[name]) for module, name in self._changed]
        for module, name, buffer in own:
            module._buffers[name] = _copied(found.get((module, name), buffer))
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


def _copied(buffer: Tensor | None) -> Tensor | None:
    return None if buffer is None else buffer.detach().clone()


def _differs(buffer: Tensor | None, old: Tensor | None) -> bool:
    if buffer is None or old is None:
        return buffer is not old
    return buffer.shape != old.shape or not torch.equal(buffer, old)
