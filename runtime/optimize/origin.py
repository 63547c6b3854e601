"""What an iteration changes besides gradients, remembered so that it can begin again."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from synth.errors import SynthError


class Origin:
    """The random state, and the buffers that forward passes change (running statistics).

    Which buffers those are is found by watching: once one is seen to have changed, it is copied at
    the start of every iteration. The first iteration, in which all of them are seen, has no step
    before it that could be wrong.
    """

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._versions = [buffer._version for buffer in self._buffers]
        self._copies: dict[int, Tensor] = {}
        self._random: Tensor | None = None
        self._device_random: Tensor | None = None

    def mark(self) -> None:
        """Remember the state now."""
        self._random = torch.get_rng_state()
        if self._device.type == "cuda":
            self._device_random = torch.cuda.get_rng_state(self._device)
        for i, buffer in enumerate(self._buffers):
            if buffer._version != self._versions[i]:
                self._versions[i] = buffer._version
                if i in self._copies:
                    self._copies[i].copy_(buffer)
                else:
                    self._copies[i] = buffer.clone()

    def restore(self) -> None:
        """Bring the remembered state back.

        Raises:
            SynthError: a buffer changed for the first time, so that nothing was remembered of it.
        """
        for i, buffer in enumerate(self._buffers):
            if buffer._version != self._versions[i] and i not in self._copies:
                raise SynthError(
                    f"a buffer of shape {tuple(buffer.shape)} was changed by a forward pass for "
                    f"the first time in a step that has to begin again, so its value before is "
                    f"lost; run without post-validation, or change it from the first step on"
                )
        assert self._random is not None
        torch.set_rng_state(self._random)
        if self._device_random is not None:
            torch.cuda.set_rng_state(self._device_random, self._device)
        for i, copy in self._copies.items():
            self._buffers[i].copy_(copy)
