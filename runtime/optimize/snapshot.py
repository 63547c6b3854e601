"""The state that an iteration changes besides gradients, remembered to begin it again."""

from collections.abc import Iterable

import torch
from torch import nn

from ..state.module_state import StatePicture
from ..state.watch import Watch

# As many as have no previous step that could be wrong: in it tensors are compared by their numbers.
_NUM_EXACT = 2


class IterationSnapshot:
    """The random state, and what forward passes change: running statistics, counters, and the like.

    What forwards change is found in the first iteration, which has no previous step that could be
    wrong: its end is compared with its start.
    """

    def __init__(self, modules: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._watch = Watch(*modules)
        self._picture: StatePicture | None = None
        self._num_marks = 0
        self._random = torch.get_rng_state()
        self._device_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def mark(self) -> None:
        """Remember the state."""
        self._random.copy_(torch.get_rng_state())
        if self._device_random is not None:
            self._device_random.copy_(torch.cuda.get_rng_state(self._device))
        self._picture = None
        self._num_marks += 1
        self._watch.begin(is_exact=self._num_marks <= _NUM_EXACT)
        self._picture = StatePicture(self._watch)

    def restore(self) -> None:
        """Restore the remembered state; not in the first iteration."""
        if self._picture is None or self._num_marks == 1:
            raise RuntimeError("the first iteration has no snapshot to restore")
        torch.set_rng_state(self._random)
        if self._device_random is not None:
            torch.cuda.set_rng_state(self._device_random, self._device)
        self._picture.put_back()
