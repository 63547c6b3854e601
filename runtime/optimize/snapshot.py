"""The state that an iteration changes besides gradients, remembered to begin it again."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class IterationSnapshot:
    """The random state, and the buffers that forward passes change (running statistics).

    These buffers are found in the first iteration, which has no previous step that could be wrong:
    its end is compared with its start. They are copied at the start of every later iteration.
    (Version counters do not help: batch norm updates its statistics without increasing them.)
    """

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._first: list[Tensor] | None = None
        self._copies: list[tuple[Tensor, Tensor]] | None = None
        self._random = torch.get_rng_state()
        self._device_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def mark(self) -> None:
        """Remember the state."""
        self._random.copy_(torch.get_rng_state())
        if self._device_random is not None:
            self._device_random.copy_(torch.cuda.get_rng_state(self._device))
        if self._copies is not None:
            for buffer, copy in self._copies:
                copy.copy_(buffer)
        elif self._first is None:  # in the host's memory: the plan does not count these
            self._first = [buffer.detach().cpu().clone() for buffer in self._buffers]
        else:
            self._copies = [
                (buffer, buffer.clone())
                for buffer, before in zip(self._buffers, self._first, strict=True)
                if not torch.equal(buffer.cpu(), before)
            ]
            self._first = []

    def restore(self) -> None:
        """Restore the remembered state; not in the first iteration."""
        if self._copies is None:
            raise RuntimeError("the first iteration has no snapshot to restore")
        torch.set_rng_state(self._random)
        if self._device_random is not None:
            torch.cuda.set_rng_state(self._device_random, self._device)
        for buffer, copy in self._copies:
            buffer.copy_(copy)
