"""What F leaves for R besides its input: the state of the random numbers that it drew from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.errors import SynthError


@dataclass(frozen=True)
class RandomState:
    """The generators' states at a moment, outside of PyTorch's memory (the CPU's is 5 kB)."""

    cpu: bytes
    cuda: tuple[tuple[int, bytes], ...] = ()

    @classmethod
    def now(cls, tensors: Sequence[Tensor]) -> "RandomState":
        """Of the CPU and of the devices of some tensors."""
        devices = sorted({t.device.index for t in tensors if t.is_cuda})
        cuda = tuple((index, _bytes(torch.cuda.get_rng_state(index))) for index in devices)
        return cls(_bytes(torch.get_rng_state()), cuda)

    def put_back(self) -> None:
        """Draw again what was drawn from then on."""
        torch.set_rng_state(_state(self.cpu))
        for index, state in self.cuda:
            torch.cuda.set_rng_state(_state(state), index)


@dataclass(frozen=True)
class Replay:
    """How F is run once more; `random` is none where it drew nothing."""

    random: RandomState | None

    @contextmanager
    def again(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Inside, random numbers are those of F; afterwards they go on as if nothing had been."""
        if self.random is None:
            yield
            return
        interrupted = RandomState.now(tensors)
        self.random.put_back()
        try:
            yield
        finally:
            interrupted.put_back()


class ReplayRecorder:
    """Looks at what an F that will be run once more does besides giving its outputs."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._versions = [t._version for t in tensors]
        self._random = RandomState.now(tensors)

    def replay(self) -> Replay:
        """To be called when F is over.

        Raises:
            SynthError: it changed its input, which R would start from.
        """
        if [t._version for t in self._tensors] != self._versions:
            raise SynthError(
                "a stage changes its input in place, so it cannot be run once more from it; take "
                "a schedule without R, or let the stage's first layer leave its input as it is"
            )
        drew = RandomState.now(self._tensors) != self._random
        return Replay(self._random if drew else None)


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _state(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
